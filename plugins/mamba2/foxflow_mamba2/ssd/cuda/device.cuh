// What the kernels need from the device; tests replace this file to run them on a CPU. No header is included, so that
// NVRTC needs no toolkit.
#define DEVICE __device__ __forceinline__

using int64 = long long;

struct bfloat16 {
    unsigned short bits;
};

template <class T> using Global = T*;
template <class A> using Shared = A*;

DEVICE float load(float value) { return value; }
DEVICE double load(double value) { return value; }
DEVICE float load(bfloat16 value) { return __uint_as_float(static_cast<unsigned>(value.bits) << 16); }

DEVICE void store(float& slot, float value) { slot = value; }
DEVICE void store(double& slot, double value) { slot = value; }
DEVICE void store(bfloat16& slot, float value) { asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(slot.bits) : "f"(value)); }

DEVICE float exponential(float value) { return expf(value); }
DEVICE double exponential(double value) { return exp(value); }
