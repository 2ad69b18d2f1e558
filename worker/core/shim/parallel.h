// Loops of our kernels on the threads that libtorch may compute with.
#pragma once

#include <c10/util/FunctionRef.h>

#include <cstdint>

namespace enn {

// How many threads this thread's loops may take.
int32_t threads_of_loops();

// Calls `part` for the numbers from `begin` to `end`, in pieces that several threads take; all at once within another loop, and where
// libtorch computes on one thread. `grain` numbers are worth waking a thread for; fewer, down to a sixteenth, are cut where other
// threads have done parts of the last loops. No piece is cut within so many numbers as a register holds, so that no number is computed
// in another way than on one thread.
//
// It waits for pieces, never for threads: one that has not woken has taken none, and where the cores are busy the caller does
// everything itself. OpenMP waits for each of its threads at the end of every loop, which beside other work costs more than they gain;
// and at::parallel_for, a template, is a plain loop in code that is compiled without it.
void parallel_for(int64_t begin, int64_t end, int64_t grain, c10::function_ref<void(int64_t, int64_t)> part);

} // namespace enn
