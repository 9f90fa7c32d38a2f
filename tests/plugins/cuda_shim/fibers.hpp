// The threads of one CUDA block as fibers of one CPU thread, with real barriers and shuffles.
//
// Scheduling is greedy: one warp runs as far as its barriers let it, then the next, in an order drawn from the seed; so
// a missing barrier lets a thread run far ahead of the others. A shuffle makes the lanes of a warp meet but orders no
// memory, as on the device.
#pragma once

#include <algorithm>
#include <csetjmp>
#include <cstdio>
#include <cstring>
#include <functional>
#include <numeric>
#include <random>
#include <string>
#include <ucontext.h>
#include <vector>

struct Index {
    unsigned x;
};
static Index threadIdx, blockIdx, blockDim;

namespace fibers {

constexpr int STACK_BYTES = 128 * 1024;

static std::string error;
static std::string skipped_file;
static int skipped_line = 0;

static void fail(const char* what, long long where, int thread, int other) {
    if (!error.empty()) return;
    char text[256];
    std::snprintf(text, sizeof text, "%s at %lld, block %u, thread %d, other thread %d", what, where, blockIdx.x,
                  thread, other);
    error = text;
}

struct Meeting {
    int expected = 0, arrived = 0;
    long generation = 0;
};

struct Fiber {
    ucontext_t context;
    std::jmp_buf resume;
    std::vector<char> stack;
    bool started, done;
    Meeting* waits_for;
    long generation;
    unsigned n_shuffles;
};

static std::vector<Fiber> threads;
static std::vector<Meeting> warp_meetings, shuffle_meetings;
static Meeting block_meeting;
// How often each warp, and the block, have passed a barrier: accesses in different epochs are ordered.
static std::vector<long> warp_epochs;
static long block_epoch;
static std::vector<double> slots[2];
static std::jmp_buf scheduler;
static std::function<void()> body;

static int current() { return static_cast<int>(threadIdx.x); }

__attribute__((noinline)) static void suspend() {
    Fiber& self = threads[current()];
    if (!_setjmp(self.resume)) _longjmp(scheduler, 1);
}

static void enter() {
    body();
    threads[current()].done = true;
    _longjmp(scheduler, 1);
}

__attribute__((noinline)) static void run(int thread) {
    Fiber& fiber = threads[thread];
    threadIdx.x = thread;
    if (_setjmp(scheduler)) return;
    if (fiber.started) _longjmp(fiber.resume, 1);
    fiber.started = true;
    setcontext(&fiber.context);
}

// Wait until all have arrived; the last to arrive calls `release` and goes on.
template <class Release> static void meet(Meeting& meeting, Release release) {
    if (++meeting.arrived == meeting.expected) {
        meeting.arrived = 0;
        meeting.generation++;
        release();
        return;
    }
    Fiber& self = threads[current()];
    self.waits_for = &meeting;
    self.generation = meeting.generation;
    suspend();
    threads[current()].waits_for = nullptr;
}

static bool is_skipped(const char* file, int line) {
    if (line != skipped_line) return false;
    const std::string path = file;
    return path.size() >= skipped_file.size() &&
           path.compare(path.size() - skipped_file.size(), std::string::npos, skipped_file) == 0;
}

static void block_barrier(const char* file, int line) {
    if (is_skipped(file, line)) return;
    meet(block_meeting, [] {
        block_epoch++;
        for (long& epoch : warp_epochs) epoch++;
    });
}

static void warp_barrier(const char* file, int line) {
    if (is_skipped(file, line)) return;
    const int warp = current() / 32;
    meet(warp_meetings[warp], [warp] { warp_epochs[warp]++; });
}

template <class A> static A exchange(A value, int source) {
    const int thread = current();
    // Two sets of slots in turn: a lane cannot write the same set again before all have read it.
    std::vector<double>& turn = slots[threads[thread].n_shuffles++ & 1];
    turn[thread] = static_cast<double>(value);
    meet(shuffle_meetings[thread / 32], [] {});
    return source >= 0 && source < 32 ? static_cast<A>(turn[thread / 32 * 32 + source]) : value;
}

static bool is_runnable(const Fiber& fiber) {
    return !fiber.done && (!fiber.waits_for || fiber.waits_for->generation != fiber.generation);
}

static void run_block(int n_threads, std::mt19937& random) {
    const int n_warps = n_threads / 32;
    threads.resize(n_threads);
    for (auto& turn : slots) turn.resize(n_threads);
    for (Fiber& fiber : threads) {
        fiber.stack.resize(STACK_BYTES);
        fiber.started = fiber.done = false;
        fiber.waits_for = nullptr;
        fiber.n_shuffles = 0;
        getcontext(&fiber.context);
        fiber.context.uc_stack.ss_sp = fiber.stack.data();
        fiber.context.uc_stack.ss_size = fiber.stack.size();
        fiber.context.uc_link = nullptr;
        makecontext(&fiber.context, enter, 0);
    }
    block_meeting = Meeting{n_threads, 0, 0};
    warp_meetings.assign(n_warps, Meeting{32, 0, 0});
    shuffle_meetings = warp_meetings;
    warp_epochs.assign(n_warps, 0);
    block_epoch = 0;

    std::vector<int> warps(n_warps), lanes(32);
    std::iota(warps.begin(), warps.end(), 0);
    std::iota(lanes.begin(), lanes.end(), 0);
    for (bool progress = true; progress;) {
        progress = false;
        std::shuffle(warps.begin(), warps.end(), random);
        for (int warp : warps) {
            for (bool ran = true; ran;) {
                ran = false;
                std::shuffle(lanes.begin(), lanes.end(), random);
                for (int lane : lanes) {
                    const int thread = warp * 32 + lane;
                    if (!is_runnable(threads[thread])) continue;
                    run(thread);
                    ran = progress = true;
                }
            }
        }
    }
    for (int thread = 0; thread < n_threads; thread++)
        if (!threads[thread].done) fail("deadlock: a thread waits for ever", 0, thread, -1);
}

}  // namespace fibers

#define __syncthreads() fibers::block_barrier(__FILE__, __LINE__)
#define __syncwarp() fibers::warp_barrier(__FILE__, __LINE__)

template <class A> static A __shfl_sync(unsigned, A value, int source) { return fibers::exchange(value, source & 31); }
template <class A> static A __shfl_xor_sync(unsigned, A value, int mask) {
    return fibers::exchange(value, (fibers::current() & 31) ^ mask);
}
template <class A> static A __shfl_down_sync(unsigned, A value, int offset) {
    return fibers::exchange(value, (fibers::current() & 31) + offset);
}
