// Loops on the threads that libtorch computes with.
//
// at::parallel_for is a template: in code that is compiled without -fopenmp it is a plain loop, and with it the linker would bring an
// OpenMP of its own beside the one that libtorch has loaded.
#pragma once

#include <c10/util/FunctionRef.h>

#include <cstdint>

namespace enn {

// Calls `part` for the numbers from `begin` to `end`, in pieces of at least `grain` on several threads; all at once where they are no
// more, within another loop, and where libtorch computes on one thread. No piece is cut within so many numbers as a register holds,
// so that no number is computed in another way than on one thread.
void parallel_for(int64_t begin, int64_t end, int64_t grain, c10::function_ref<void(int64_t, int64_t)> part);

} // namespace enn
