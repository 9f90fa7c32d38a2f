// The recurrence with the state in registers: exact for every length and decay, no exponential of a difference.
//
// Shared memory: B, C (CHUNK, N) of the group; for each warp dt, exp(dt A) (CHUNK).

template <class T, class A, int P, int N>
DEVICE void ssd_forward_block(Shared<A> shared, Shape shape, Global<const T> x, Global<const T> dt, Global<const A> A_H,
                              Global<const T> B, Global<const T> C, Global<const A> D, Global<const A> initial,
                              Global<T> y, Global<A> final, Global<A> checkpoints) {
    const Place place(shape);
    const Shared<A> b = shared, c = b + CHUNK * PITCH<N>;
    const Shared<A> steps = c + CHUNK * PITCH<N> + warp() * 2 * CHUNK, decays = steps + CHUNK;
    const A rate = A_H[place.head], skip = D[place.head];

    Tile<A, N, P> state;
    state.each([&](A& s, int n, int p) { s = initial[(place.of_head() * P + p) * N + n]; });
    for (int64 start = 0; start < shape.n_bars; start += CHUNK) {
        __syncthreads();
        load_group_rows<T, A, N>(b, B, place, start);
        load_group_rows<T, A, N>(c, C, place, start);
        load_steps<T, A>(steps, decays, dt, rate, place, start);
        if (checkpoints && start % SPAN == 0)
            state.each([&](A& s, int n, int p) { checkpoints[(place.of_span(start) * N + n) * P + p] = s; });
        __syncthreads();
        const int64 left = shape.n_bars - start;
        const int n_bars = left < CHUNK ? static_cast<int>(left) : CHUNK;
        for (int l = 0; l < n_bars; l++) {
            const A step = steps[l], decay = decays[l];
            const int64 bar = place.of_bar_head(start + l) * P;
            A inputs[P / 8], outputs[P / 8];
#pragma unroll
            for (int j = 0; j < P / 8; j++) {
                inputs[j] = load(x[bar + state.column(j)]);
                outputs[j] = A(0);
            }
#pragma unroll
            for (int i = 0; i < N / 4; i++) {
                const A b_n = b[l * PITCH<N> + state.row(i)], c_n = c[l * PITCH<N> + state.row(i)];
#pragma unroll
                for (int j = 0; j < P / 8; j++) {
                    A& s = state.value[i][j];
                    s = s * decay + b_n * (inputs[j] * step);
                    outputs[j] += c_n * s;
                }
            }
#pragma unroll
            for (int j = 0; j < P / 8; j++) {
                outputs[j] += __shfl_xor_sync(ALL_LANES, outputs[j], 8);
                outputs[j] += __shfl_xor_sync(ALL_LANES, outputs[j], 16);
                // The four rows of lanes hold the same sum; they take turns to write it.
                if (j % 4 == state.row(0)) store(y[bar + state.column(j)], outputs[j] + skip * inputs[j]);
            }
        }
    }
    state.each([&](A& s, int n, int p) { final[(place.of_head() * P + p) * N + n] = s; });
}
