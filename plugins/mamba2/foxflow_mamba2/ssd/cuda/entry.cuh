// The two kernels of one variant; STORED, REAL, HEAD_DIM and D_STATE are defined on NVRTC's command line.

extern "C" __global__ void __launch_bounds__(32 * MAX_HEADS)
    ssd_forward(Shape shape, const STORED* x, const STORED* dt, const REAL* A, const STORED* B, const STORED* C,
                const REAL* D, const REAL* initial, STORED* y, REAL* final, REAL* checkpoints) {
    extern __shared__ __align__(16) unsigned char memory[];
    ssd_forward_block<STORED, REAL, HEAD_DIM, D_STATE>(reinterpret_cast<REAL*>(memory), shape, x, dt, A, B, C, D,
                                                       initial, y, final, checkpoints);
}

extern "C" __global__ void __launch_bounds__(32 * MAX_HEADS)
    ssd_backward(Shape shape, const STORED* x, const STORED* dt, const REAL* A, const STORED* B, const STORED* C,
                 const REAL* D, const REAL* checkpoints, const STORED* dy, const REAL* dfinal, STORED* dx, STORED* ddt,
                 REAL* dA, REAL* dB, REAL* dC, REAL* dD, REAL* dinitial) {
    extern __shared__ __align__(16) unsigned char memory[];
    ssd_backward_block<STORED, REAL, HEAD_DIM, D_STATE>(reinterpret_cast<REAL*>(memory), shape, x, dt, A, B, C, D,
                                                        checkpoints, dy, dfinal, dx, ddt, dA, dB, dC, dD, dinitial);
}
