// Shapes and tiles shared by the forward and the backward kernel.
//
// One block of threads works on one batch row and `blockDim.x / 32` heads of one group, one warp a head. T is the type
// in global memory, A the type of the arithmetic, P the head width, N the state width.

constexpr unsigned ALL_LANES = 0xffffffffu;

struct Shape {
    int64 n_batch, n_bars, n_heads, n_groups;
};

DEVICE int lane() { return threadIdx.x & 31; }
DEVICE int warp() { return threadIdx.x >> 5; }

// Offsets are 64 bits wide: batch times length passes 2^31 in ordinary use.
struct Place {
    Shape shape;
    int64 batch, group, head, block;

    DEVICE explicit Place(Shape s) : shape(s) {
        const int64 heads = blockDim.x / 32;
        const int64 blocks = s.n_heads / s.n_groups / heads;
        const int64 index = blockIdx.x;
        block = index % blocks;
        group = index / blocks % s.n_groups;
        batch = index / blocks / s.n_groups;
        head = group * (s.n_heads / s.n_groups) + block * heads + warp();
    }
    DEVICE int64 of_bar_head(int64 bar) const { return (batch * shape.n_bars + bar) * shape.n_heads + head; }
    DEVICE int64 of_bar_group(int64 bar) const { return (batch * shape.n_bars + bar) * shape.n_groups + group; }
    DEVICE int64 of_head() const { return batch * shape.n_heads + head; }
    DEVICE int64 of_span(int64 start) const {
        const int64 n_spans = (shape.n_bars + SPAN - 1) / SPAN;
        return (batch * n_spans + start / SPAN) * shape.n_heads + head;
    }
};

// Odd row lengths keep a column of a tile in shared memory on different banks.
template <int WIDTH> constexpr int PITCH = WIDTH + 1;

// A matrix spread over the 32 lanes of a warp: a lane holds every 4th row of every 8th column.
template <class A, int ROWS, int COLUMNS> struct Tile {
    static_assert(ROWS % 4 == 0 && COLUMNS % 8 == 0, "a tile has whole parts in every lane");
    A value[ROWS / 4][COLUMNS / 8];

    DEVICE static int row(int i) { return i * 4 + (lane() >> 3); }
    DEVICE static int column(int j) { return j * 8 + (lane() & 7); }

    template <class Visit> DEVICE void each(Visit visit) {
#pragma unroll
        for (int i = 0; i < ROWS / 4; i++) {
#pragma unroll
            for (int j = 0; j < COLUMNS / 8; j++) visit(value[i][j], row(i), column(j));
        }
    }
    DEVICE void clear() {
        each([](A& v, int, int) { v = A(0); });
    }
    // Add the product of two matrices, given as functions left(row, k) and right(k, column).
    template <int DEPTH, class Left, class Right> DEVICE void add_product(Left left, Right right) {
#pragma unroll 4
        for (int k = 0; k < DEPTH; k++) {
            A factor[ROWS / 4];
#pragma unroll
            for (int i = 0; i < ROWS / 4; i++) factor[i] = left(row(i), k);
#pragma unroll
            for (int j = 0; j < COLUMNS / 8; j++) {
                const A other = right(k, column(j));
#pragma unroll
                for (int i = 0; i < ROWS / 4; i++) value[i][j] += factor[i] * other;
            }
        }
    }
};

template <class A> DEVICE A sum_over_warp(A value) {
    for (int offset = 16; offset; offset >>= 1) value += __shfl_xor_sync(ALL_LANES, value, offset);
    return value;
}

// Copy the block's rows of B or C for one chunk, zeros after the last bar.
template <class T, class A, int N>
DEVICE void load_group_rows(Shared<A> rows, Global<const T> source, const Place& place, int64 start) {
    for (int i = threadIdx.x; i < CHUNK * N; i += blockDim.x) {
        const int64 bar = start + i / N;
        A value = A(0);
        if (bar < place.shape.n_bars) value = load(source[place.of_bar_group(bar) * N + i % N]);
        rows[i / N * PITCH<N> + i % N] = value;
    }
}

// Write dt and exp(dt A) of one chunk for the warp's head; a bar after the last has dt = 0 and so changes no state.
template <class T, class A>
DEVICE void load_steps(Shared<A> steps, Shared<A> decays, Global<const T> dt, A rate, const Place& place, int64 start) {
    if (lane() < CHUNK) {
        const int64 bar = start + lane();
        A step = A(0);
        if (bar < place.shape.n_bars) step = load(dt[place.of_bar_head(bar)]);
        steps[lane()] = step;
        decays[lane()] = exponential(step * rate);
    }
}

// Read x dt of one bar, the columns of this lane.
template <class T, class A, int P>
DEVICE void load_inputs(A (&xdt)[P / 8], Global<const T> x, A step, const Place& place, int64 bar) {
#pragma unroll
    for (int j = 0; j < P / 8; j++) xdt[j] = load(x[place.of_bar_head(bar) * P + Tile<A, 4, P>::column(j)]) * step;
}
