// Every gradient of the scan, in chunks from the last to the first. Only the states at every SPAN-th bar were saved;
// those between them are computed again by the recurrence.
//
// In one chunk, with E[l][s] the product of the decays of bars s+1 to l (zero for s > l), F[l] that of bars 0 to l,
// S the state before the chunk and dS the gradient of the state after it:
//     y[l] = F[l] C[l] S + sum_s E[l][s] (C[l] B[s]) x[s] dt[s]
//     state after = F[-1] S + sum_s E[-1][s] B[s] x[s] dt[s]
// Products of decays in [0, 1], unlike exponentials of differences, can neither overflow nor cancel.
//
// Shared memory: B, C (CHUNK, N), their products and the gradient of those (CHUNK, CHUNK) of the group; for each warp
// what `WarpMemory` lists.

template <class A, int P, int N> struct WarpMemory {
    Shared<A> xdt, dy, mixed, dgram, state, db, dc, steps, decays, from_start, to_end;

    static constexpr int SIZE = 2 * CHUNK * PITCH<P> + 2 * CHUNK * PITCH<CHUNK> + N * PITCH<P> +
                                2 * CHUNK * PITCH<N> + 4 * CHUNK;

    DEVICE explicit WarpMemory(Shared<A> memory)
        : xdt(memory), dy(xdt + CHUNK * PITCH<P>), mixed(dy + CHUNK * PITCH<P>), dgram(mixed + CHUNK * PITCH<CHUNK>),
          state(dgram + CHUNK * PITCH<CHUNK>), db(state + N * PITCH<P>), dc(db + CHUNK * PITCH<N>),
          steps(dc + CHUNK * PITCH<N>), decays(steps + CHUNK), from_start(decays + CHUNK), to_end(from_start + CHUNK) {}
};

// Fill `mixed` with E, `from_start` with F and `to_end` with the last row of E; a lane a column.
template <class A, int P, int N> DEVICE void multiply_decays(WarpMemory<A, P, N>& own) {
    if (lane() < CHUNK) {
        A product = A(0), first = A(1);
        for (int l = 0; l < CHUNK; l++) {
            const A decay = own.decays[l];
            product = l == lane() ? A(1) : product * decay;
            own.mixed[l * PITCH<CHUNK> + lane()] = product;
            first *= decay;
            if (l == lane()) own.from_start[l] = first;
        }
        own.to_end[lane()] = product;
    }
}

// Sums over the bars, one a lane, from this one on, and over those before it.
template <class A> DEVICE A sum_of_later_lanes(A value) {
    for (int offset = 1; offset < CHUNK; offset <<= 1) {
        const A other = __shfl_down_sync(ALL_LANES, value, offset);
        if (lane() + offset < CHUNK) value += other;
    }
    return value;
}
template <class A> DEVICE A sum_of_earlier_lanes(A value) {
    A sum = A(0);
    for (int l = 0; l < CHUNK; l++) {
        const A other = __shfl_sync(ALL_LANES, value, l);
        if (l < lane()) sum += other;
    }
    return sum;
}

// Return the gradient of dt A at each bar, one a lane: what passes that bar's decay on its way from an earlier input or
// state to a later output or state. Summed as it is: row sums minus column sums, in which all that lies on one side of
// the bar cancels, lose two digits of float32. `after` is what passes the whole chunk.
template <class A, int P, int N>
DEVICE A gradient_of_log_decay(WarpMemory<A, P, N>& own, Shared<A> b, Shared<A> c, Shared<A> gram, A after) {
    A crossing = A(0), from_state = A(0), to_state = A(0);
    if (lane() < CHUNK) {
        for (int l = lane(); l < CHUNK; l++) {
            for (int s = 0; s < lane(); s++) {
                const int here = l * PITCH<CHUNK> + s;
                crossing += own.dgram[here] * gram[here];
            }
        }
        for (int n = 0; n < N; n++) {
            const int here = lane() * PITCH<N> + n;
            from_state += c[here] * own.dc[here];
            to_state += b[here] * own.db[here];
        }
    }
    return crossing + sum_of_later_lanes(from_state) + sum_of_earlier_lanes(to_state) + after;
}

template <class T, class A, int P, int N>
DEVICE void ssd_backward_block(Shared<A> shared, Shape shape, Global<const T> x, Global<const T> dt,
                               Global<const A> A_H, Global<const T> B, Global<const T> C, Global<const A> D,
                               Global<const A> checkpoints, Global<const T> dy, Global<const A> dfinal, Global<T> dx,
                               Global<T> ddt, Global<A> dA, Global<A> dB, Global<A> dC, Global<A> dD,
                               Global<A> dinitial) {
    using Own = WarpMemory<A, P, N>;
    const Place place(shape);
    const int n_warps = blockDim.x / 32;
    const Shared<A> b = shared, c = b + CHUNK * PITCH<N>, gram = c + CHUNK * PITCH<N>;
    const Shared<A> dgram = gram + CHUNK * PITCH<CHUNK>, warps = dgram + CHUNK * PITCH<CHUNK>;
    Own own(warps + warp() * Own::SIZE);
    const A rate = A_H[place.head], skip = D[place.head];
    A sum_dA = A(0), sum_dD = A(0);

    Tile<A, N, P> dstate;
    dstate.each([&](A&, int n, int p) { own.state[n * PITCH<P> + p] = dfinal[(place.of_head() * P + p) * N + n]; });
    for (int64 start = (shape.n_bars - 1) / CHUNK * CHUNK; start >= 0; start -= CHUNK) {
        A after = A(0);
        {
            Tile<A, N, P> state;
            state.each([&](A& s, int n, int p) { s = checkpoints[(place.of_span(start) * N + n) * P + p]; });
            for (int64 earlier = start / SPAN * SPAN; earlier < start; earlier += CHUNK) {
                __syncthreads();
                load_group_rows<T, A, N>(b, B, place, earlier);
                load_steps<T, A>(own.steps, own.decays, dt, rate, place, earlier);
                __syncthreads();
                for (int l = 0; l < CHUNK; l++) {
                    const A decay = own.decays[l];
                    A xdt[P / 8];
                    load_inputs<T, A, P>(xdt, x, own.steps[l], place, earlier + l);
#pragma unroll
                    for (int i = 0; i < N / 4; i++) {
                        const A b_n = b[l * PITCH<N> + state.row(i)];
#pragma unroll
                        for (int j = 0; j < P / 8; j++) state.value[i][j] = state.value[i][j] * decay + b_n * xdt[j];
                    }
                }
            }
            // One buffer for two matrices: the state before the chunk takes the place of the gradient after it, which
            // waits in registers. Each lane swaps its own elements.
#pragma unroll
            for (int i = 0; i < N / 4; i++) {
#pragma unroll
                for (int j = 0; j < P / 8; j++) {
                    const int here = state.row(i) * PITCH<P> + state.column(j);
                    dstate.value[i][j] = own.state[here];
                    after += dstate.value[i][j] * state.value[i][j];
                    own.state[here] = state.value[i][j];
                }
            }
        }
        __syncthreads();
        load_group_rows<T, A, N>(b, B, place, start);
        load_group_rows<T, A, N>(c, C, place, start);
        load_steps<T, A>(own.steps, own.decays, dt, rate, place, start);
        __syncwarp();
        multiply_decays(own);
        for (int i = lane(); i < CHUNK * P; i += 32) {
            const int64 bar = start + i / P;
            A input = A(0), gradient = A(0);
            if (bar < shape.n_bars) {
                input = load(x[place.of_bar_head(bar) * P + i % P]);
                gradient = load(dy[place.of_bar_head(bar) * P + i % P]);
            }
            own.xdt[i / P * PITCH<P> + i % P] = input * own.steps[i / P];
            own.dy[i / P * PITCH<P> + i % P] = gradient;
            sum_dD += input * gradient;
        }
        __syncthreads();

        for (int i = threadIdx.x; i < CHUNK * CHUNK; i += blockDim.x) {
            const int l = i / CHUNK, s = i % CHUNK;
            A product = A(0);
            if (s <= l)
                for (int n = 0; n < N; n++) product += c[l * PITCH<N> + n] * b[s * PITCH<N> + n];
            gram[l * PITCH<CHUNK> + s] = product;
        }
        {
            Tile<A, CHUNK, N> part;
            part.clear();
            part.template add_product<P>([&](int l, int p) -> A { return own.dy[l * PITCH<P> + p]; },
                                         [&](int p, int n) -> A { return own.state[n * PITCH<P> + p]; });
            part.each([&](A& v, int l, int n) { own.dc[l * PITCH<N> + n] = v * own.from_start[l]; });
        }
        __syncthreads();

        dstate.each([&](A& v, int n, int p) { own.state[n * PITCH<P> + p] = v; });
        {
            Tile<A, CHUNK, CHUNK> part;
            part.clear();
            part.template add_product<P>([&](int l, int p) -> A { return own.dy[l * PITCH<P> + p]; },
                                         [&](int p, int s) -> A { return own.xdt[s * PITCH<P> + p]; });
            part.each([&](A& v, int l, int s) {
                const int here = l * PITCH<CHUNK> + s;
                const A decay = own.mixed[here];
                own.dgram[here] = v * decay;
                own.mixed[here] = gram[here] * decay;
            });
        }
        __syncwarp();
        {
            Tile<A, CHUNK, N> part;
            part.clear();
            part.template add_product<P>([&](int s, int p) -> A { return own.xdt[s * PITCH<P> + p]; },
                                         [&](int p, int n) -> A { return own.state[n * PITCH<P> + p]; });
            part.each([&](A& v, int s, int n) { own.db[s * PITCH<N> + n] = v * own.to_end[s]; });
        }
        Tile<A, CHUNK, P> dxdt;
        dxdt.clear();
        dxdt.template add_product<N>([&](int s, int n) -> A { return b[s * PITCH<N> + n] * own.to_end[s]; },
                                     [&](int n, int p) -> A { return own.state[n * PITCH<P> + p]; });
        dxdt.template add_product<CHUNK>([&](int s, int l) -> A { return own.mixed[l * PITCH<CHUNK> + s]; },
                                         [&](int l, int p) -> A { return own.dy[l * PITCH<P> + p]; });
        __syncwarp();

        const A whole = own.from_start[CHUNK - 1];
        after = sum_over_warp(after) * whole;
        const A dlog = gradient_of_log_decay(own, b, c, gram, after);
        if (lane() < CHUNK) sum_dA += dlog * own.steps[lane()];
#pragma unroll
        for (int i = 0; i < CHUNK / 4; i++) {
            const int l = dxdt.row(i);
            const int64 bar = start + l;
            const A step = own.steps[l];
            A slope = A(0);
            if (bar < shape.n_bars) {
#pragma unroll
                for (int j = 0; j < P / 8; j++) {
                    const int64 here = place.of_bar_head(bar) * P + dxdt.column(j);
                    slope += dxdt.value[i][j] * load(x[here]);
                    store(dx[here], dxdt.value[i][j] * step + own.dy[l * PITCH<P> + dxdt.column(j)] * skip);
                }
            }
            for (int offset = 4; offset; offset >>= 1) slope += __shfl_xor_sync(ALL_LANES, slope, offset);
            slope += __shfl_sync(ALL_LANES, dlog, l) * rate;
            if (dxdt.column(0) == 0 && bar < shape.n_bars) store(ddt[place.of_bar_head(bar)], slope);
        }
        dstate.each([&](A& v, int, int) { v *= whole; });
        dstate.template add_product<CHUNK>([&](int n, int l) -> A { return c[l * PITCH<N> + n] * own.from_start[l]; },
                                           [&](int l, int p) -> A { return own.dy[l * PITCH<P> + p]; });
        dstate.each([&](A& v, int n, int p) { own.state[n * PITCH<P> + p] = v; });
        __syncthreads();

        // The heads of the block share B and C: their gradients are summed in the order of the heads.
        for (int i = threadIdx.x; i < CHUNK * CHUNK; i += blockDim.x) {
            const int here = i / CHUNK * PITCH<CHUNK> + i % CHUNK;
            A sum = A(0);
            for (int w = 0; w < n_warps; w++) sum += Own(warps + w * Own::SIZE).dgram[here];
            dgram[here] = sum;
        }
        __syncthreads();
        for (int i = threadIdx.x; i < CHUNK * N; i += blockDim.x) {
            const int l = i / N, n = i % N, here = l * PITCH<N> + n;
            if (start + l >= shape.n_bars) continue;
            A of_b = A(0), of_c = A(0);
            for (int w = 0; w < n_warps; w++) {
                const Own other(warps + w * Own::SIZE);
                of_b += other.db[here];
                of_c += other.dc[here];
            }
            for (int s = 0; s < CHUNK; s++) {
                of_c += dgram[l * PITCH<CHUNK> + s] * b[s * PITCH<N> + n];
                of_b += dgram[s * PITCH<CHUNK> + l] * c[s * PITCH<N> + n];
            }
            const int64 rows = shape.n_batch * shape.n_bars * shape.n_groups;
            const int64 out = (place.block * rows + place.of_bar_group(start + l)) * N + n;
            dB[out] = of_b;
            dC[out] = of_c;
        }
    }
    sum_dA = sum_over_warp(sum_dA);
    sum_dD = sum_over_warp(sum_dD);
    if (lane() == 0) {
        dA[place.of_head()] = sum_dA;
        dD[place.of_head()] = sum_dD;
    }
    dstate.each([&](A&, int n, int p) { dinitial[(place.of_head() * P + p) * N + n] = own.state[n * PITCH<P> + p]; });
}
