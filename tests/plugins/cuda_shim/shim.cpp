// The CUDA source of the scan compiled for the CPU. The kernels' folder is on the include path; CHUNK, SPAN and the
// list of variants come from the command line.
#include "memory.hpp"

#define DEVICE inline
static double exponential(double value) { return __builtin_exp(value); }
static float exponential(float value) { return __builtin_expf(value); }

#include "tile.cuh"
#include "forward.cuh"
#include "backward.cuh"

namespace {

struct Launch {
    bool is_forward;
    int64 n_blocks;
    int heads;
    int64 shared_bytes;
    unsigned seed;
    void** pointers;
    const int64* counts;
    Shape shape;
};

template <class A> void run_blocks(const Launch& launch, std::function<void()> body) {
    std::mt19937 random(launch.seed);
    fibers::body = body;
    blockDim.x = launch.heads * 32;
    for (int64 block = 0; block < launch.n_blocks && fibers::error.empty(); block++) {
        blockIdx.x = static_cast<unsigned>(block);
        shared::bytes.resize(launch.shared_bytes);
        for (std::size_t i = 0; i < shared::bytes.size() / sizeof(A); i++)
            poison(reinterpret_cast<A*>(shared::bytes.data())[i]);
        shared::shadows.assign(shared::bytes.size() / sizeof(A), shared::Shadow{});
        fibers::run_block(launch.heads * 32, random);
    }
}

// Hands out the arguments in order, inputs as they are, outputs poisoned and counted.
struct Arguments {
    const Launch& launch;
    int next = 0;
    std::vector<std::vector<unsigned char>> writes = std::vector<std::vector<unsigned char>>(20);

    template <class T> Global<const T> in() {
        const int i = next++;
        return {static_cast<const T*>(launch.pointers[i]), launch.counts[i], nullptr};
    }
    template <class T> Global<T> out() {
        const int i = next++;
        T* data = static_cast<T*>(launch.pointers[i]);
        for (int64 k = 0; k < launch.counts[i]; k++) poison(data[k]);
        writes[i].assign(launch.counts[i], 0);
        return {data, launch.counts[i], &writes[i]};
    }
    void check_all_written() const {
        for (const auto& counts : writes)
            for (std::size_t k = 0; k < counts.size(); k++)
                if (!counts[k]) fibers::fail("output element never written", static_cast<int64>(k), -1, -1);
    }
};

template <class T, class A, int P, int N> void run_variant(const Launch& launch) {
    Arguments arguments{launch};
    const auto x = arguments.in<T>(), dt = arguments.in<T>();
    const auto rates = arguments.in<A>();
    const auto B = arguments.in<T>(), C = arguments.in<T>();
    const auto D = arguments.in<A>(), state = arguments.in<A>();
    const Shape shape = launch.shape;
    if (launch.is_forward) {
        const auto y = arguments.out<T>();
        const auto final = arguments.out<A>(), checkpoints = arguments.out<A>();
        run_blocks<A>(launch, [=] {
            ssd_forward_block<T, A, P, N>(Shared<A>{}, shape, x, dt, rates, B, C, D, state, y, final, checkpoints);
        });
    } else {
        const auto dy = arguments.in<T>();
        const auto dfinal = arguments.in<A>();
        const auto dx = arguments.out<T>(), ddt = arguments.out<T>();
        const auto dA = arguments.out<A>(), dB = arguments.out<A>(), dC = arguments.out<A>();
        const auto dD = arguments.out<A>(), dinitial = arguments.out<A>();
        run_blocks<A>(launch, [=] {
            ssd_backward_block<T, A, P, N>(Shared<A>{}, shape, x, dt, rates, B, C, D, state, dy, dfinal, dx, ddt, dA,
                                           dB, dC, dD, dinitial);
        });
    }
    arguments.check_all_written();
}

}  // namespace

extern "C" void shim_skip_barrier(const char* file, int line) {
    fibers::skipped_file = file;
    fibers::skipped_line = line;
}

// Write the largest offsets of one thread's place: into x, into B, into the states and into the saved states.
extern "C" void shim_place(const int64* sizes, int heads, unsigned block, unsigned thread, int64* offsets) {
    blockDim.x = heads * 32;
    blockIdx.x = block;
    threadIdx.x = thread;
    const Place place(Shape{sizes[0], sizes[1], sizes[2], sizes[3]});
    const int64 last = sizes[1] - 1;
    offsets[0] = place.of_bar_head(last);
    offsets[1] = place.of_bar_group(last);
    offsets[2] = place.of_head();
    offsets[3] = place.of_span(last);
}

// Return an empty text, or what the kernel did wrong.
extern "C" const char* shim_launch(const char* variant, int is_forward, int64 n_blocks, int heads, int64 shared_bytes,
                                   unsigned seed, void** pointers, const int64* counts, const int64* sizes) {
    const Launch launch{is_forward != 0, n_blocks, heads, shared_bytes, seed, pointers, counts,
                        Shape{sizes[0], sizes[1], sizes[2], sizes[3]}};
    fibers::error.clear();
    const std::string wanted = variant;
#define VARIANT(T, A, P, N) \
    if (wanted == #T "_" #P "_" #N) { run_variant<T, A, P, N>(launch); return fibers::error.c_str(); }
    VARIANTS
    return "no such variant in the shim";
}
