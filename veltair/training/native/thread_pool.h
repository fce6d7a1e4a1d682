/* Tasks on threads that stay. Plain C without OpenMP, whose runtime a process may have several of. */
#ifndef VELTAIR_TRAINING_THREAD_POOL_H
#define VELTAIR_TRAINING_THREAD_POOL_H
#include <stdint.h>

typedef void (*task_function)(const void *call, int64_t task);

/* Runs task 0 to tasks - 1, each once, on the caller and up to threads - 1 others; returns when all are done. Who
 * calls while another caller has the threads runs its tasks alone. */
void run_tasks(task_function function, const void *call, int64_t tasks, int threads);

#endif
