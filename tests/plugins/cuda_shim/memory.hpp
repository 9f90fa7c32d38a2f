// Global and shared memory that check every access.
//
// Global: bounds; an output is poisoned with NaN, and each element must be written exactly once. Shared: bounds, a read
// before any write, and two accesses of different threads, one a write, with no barrier between them (a race).
#pragma once

#include <cstdint>
#include <limits>
#include <type_traits>

#include "fibers.hpp"

using int64 = long long;

struct bfloat16 {
    std::uint16_t bits;
};

static float load(float value) { return value; }
static double load(double value) { return value; }
static float load(bfloat16 value) {
    const std::uint32_t bits = static_cast<std::uint32_t>(value.bits) << 16;
    float result;
    std::memcpy(&result, &bits, 4);
    return result;
}
static void store(float& slot, float value) { slot = value; }
static void store(double& slot, double value) { slot = value; }
static void store(bfloat16& slot, float value) {
    std::uint32_t bits;
    std::memcpy(&bits, &value, 4);
    // Rounds to nearest, ties to even; a NaN stays one.
    const bool is_nan = (bits & 0x7fffffffu) > 0x7f800000u;
    slot.bits = static_cast<std::uint16_t>(is_nan ? bits >> 16 | 64u : (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}
static void poison(float& slot) { slot = std::numeric_limits<float>::quiet_NaN(); }
static void poison(double& slot) { slot = std::numeric_limits<double>::quiet_NaN(); }
static void poison(bfloat16& slot) { slot.bits = 0x7fc0; }

template <class T> struct Global {
    T* data = nullptr;
    int64 count = 0;
    std::vector<unsigned char>* writes = nullptr;

    explicit operator bool() const { return data; }
    T& operator[](int64 index) const {
        static std::remove_const_t<T> nowhere;
        if (index < 0 || index >= count) {
            fibers::fail("global access out of bounds", index, fibers::current(), -1);
            return nowhere;
        }
        if constexpr (!std::is_const_v<T>)
            if ((*writes)[index]++) fibers::fail("global element written twice", index, fibers::current(), -1);
        return data[index];
    }
};

namespace shared {

struct Access {
    int thread = -1;
    long warp_epoch = 0, block_epoch = 0;

    bool is_ordered_before_now() const {
        const int now = fibers::current();
        if (thread == now) return true;
        if (thread / 32 == now / 32) return warp_epoch < fibers::warp_epochs[now / 32];
        return block_epoch < fibers::block_epoch;
    }
    static Access now() {
        return {fibers::current(), fibers::warp_epochs[fibers::current() / 32], fibers::block_epoch};
    }
};

struct Shadow {
    Access write, read;
    bool read_by_warps = false, read_by_lanes = false;
};

static std::vector<Shadow> shadows;
static std::vector<unsigned char> bytes;

static void check_read(Shadow& shadow, int64 index) {
    if (shadow.write.thread < 0) return fibers::fail("shared memory read before written", index, fibers::current(), -1);
    if (!shadow.write.is_ordered_before_now())
        fibers::fail("race: shared read after write", index, fibers::current(), shadow.write.thread);
    const Access now = Access::now();
    const bool same_block_epoch = shadow.read.thread >= 0 && shadow.read.block_epoch == now.block_epoch;
    const bool same_warp = shadow.read.thread / 32 == now.thread / 32;
    const bool same_warp_epoch = same_warp && shadow.read.warp_epoch == now.warp_epoch;
    shadow.read_by_warps = same_block_epoch && (shadow.read_by_warps || !same_warp);
    const bool by_lanes = shadow.read_by_lanes || shadow.read.thread != now.thread;
    shadow.read_by_lanes = same_block_epoch && same_warp_epoch && by_lanes;
    shadow.read = now;
}

static void check_write(Shadow& shadow, int64 index) {
    if (shadow.write.thread >= 0 && !shadow.write.is_ordered_before_now())
        fibers::fail("race: shared write after write", index, fibers::current(), shadow.write.thread);
    const Access now = Access::now();
    if (shadow.read.thread >= 0 && shadow.read.block_epoch == now.block_epoch) {
        const bool same_warp = shadow.read.thread / 32 == now.thread / 32;
        const bool same_warp_epoch = same_warp && shadow.read.warp_epoch == now.warp_epoch;
        if (shadow.read_by_warps || !same_warp ||
            (same_warp_epoch && (shadow.read_by_lanes || shadow.read.thread != now.thread)))
            fibers::fail("race: shared write after read", index, now.thread, shadow.read.thread);
    }
    shadow.write = now;
}

}  // namespace shared

template <class A> struct Cell {
    int64 index;

    bool is_inside() const {
        const bool inside = index >= 0 && index < static_cast<int64>(shared::bytes.size() / sizeof(A));
        if (!inside) fibers::fail("shared access out of bounds", index, fibers::current(), -1);
        return inside;
    }
    A& slot() const { return reinterpret_cast<A*>(shared::bytes.data())[index]; }
    operator A() const {
        if (!is_inside()) return std::numeric_limits<A>::quiet_NaN();
        shared::check_read(shared::shadows[index], index);
        return slot();
    }
    const Cell& operator=(A value) const {
        if (is_inside()) {
            shared::check_write(shared::shadows[index], index);
            slot() = value;
        }
        return *this;
    }
};

template <class A> struct Shared {
    int64 offset = 0;

    Shared operator+(int64 elements) const { return {offset + elements}; }
    Cell<A> operator[](int64 index) const { return {offset + index}; }
};
