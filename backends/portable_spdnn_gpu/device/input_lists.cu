// The list of inputs by itself: before the first step, and behind steps that launch nothing.
//
// One block of 1,024 threads; see input_lists.cuh.
#include "input_lists.cuh"

#define THREADS 1024

extern "C" __global__ void __launch_bounds__(THREADS)
list_active(const int* before, unsigned char* active, LIST_PARAMETERS) {
    __shared__ int words[LIST_WORDS(THREADS)];
    list_inputs<THREADS>(before, active, ids, next_source, after, policy, words);
}
