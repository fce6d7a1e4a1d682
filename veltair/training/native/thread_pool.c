#define _POSIX_C_SOURCE 200809L
#include "thread_pool.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>

enum { MOST_WORKERS = 255 };

static struct {
  pthread_mutex_t owner; /* held by the caller whose tasks run */
  pthread_mutex_t lock;  /* of what follows */
  pthread_cond_t begin, end;
  uint64_t round; /* counts calls, so that a worker sees a new one */
  int workers, wanted, running;
  task_function function;
  const void *call;
  int64_t tasks;
  _Atomic int64_t next;
} pool = {.owner = PTHREAD_MUTEX_INITIALIZER,
          .lock = PTHREAD_MUTEX_INITIALIZER,
          .begin = PTHREAD_COND_INITIALIZER,
          .end = PTHREAD_COND_INITIALIZER};

static void take_tasks(task_function function, const void *call, int64_t tasks) {
  for (int64_t task; (task = atomic_fetch_add(&pool.next, 1)) < tasks;) function(call, task);
}

static void *work(void *number) {
  const int me = (int)(intptr_t)number;
  pthread_mutex_lock(&pool.lock);
  uint64_t seen = pool.round - 1; /* who is started for a call takes part in it */
  for (;;) {
    while (pool.round == seen) pthread_cond_wait(&pool.begin, &pool.lock);
    seen = pool.round;
    if (me >= pool.wanted) continue;
    const task_function function = pool.function;
    const void *call = pool.call;
    const int64_t tasks = pool.tasks;
    pthread_mutex_unlock(&pool.lock);
    take_tasks(function, call, tasks);
    pthread_mutex_lock(&pool.lock);
    if (--pool.running == 0) pthread_cond_signal(&pool.end);
  }
  return 0;
}

/* A forked child has one thread, and no call in flight. */
static void forget_workers(void) {
  pthread_mutex_init(&pool.owner, 0);
  pthread_mutex_init(&pool.lock, 0);
  pthread_cond_init(&pool.begin, 0);
  pthread_cond_init(&pool.end, 0);
  pool.workers = pool.wanted = pool.running = 0;
}

__attribute__((constructor)) static void watch_forks(void) { pthread_atfork(0, 0, forget_workers); }

/* With pool.lock held. Signals of the process stay with the threads that it knows. */
static void start_workers(int count) {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  for (pthread_t thread; pool.workers < count && pool.workers < MOST_WORKERS; pool.workers++) {
    if (pthread_create(&thread, 0, work, (void *)(intptr_t)pool.workers) != 0) break;
    pthread_detach(thread);
  }
  pthread_sigmask(SIG_SETMASK, &before, 0);
}

void run_tasks(task_function function, const void *call, int64_t tasks, int threads) {
  if (threads > tasks) threads = (int)tasks;
  if (threads <= 1 || pthread_mutex_trylock(&pool.owner) != 0) {
    for (int64_t task = 0; task < tasks; task++) function(call, task);
    return;
  }
  pthread_mutex_lock(&pool.lock);
  pool.round++;
  start_workers(threads - 1);
  pool.wanted = pool.running = pool.workers < threads - 1 ? pool.workers : threads - 1;
  pool.function = function, pool.call = call, pool.tasks = tasks;
  atomic_store(&pool.next, 0);
  pthread_cond_broadcast(&pool.begin);
  pthread_mutex_unlock(&pool.lock);
  take_tasks(function, call, tasks);
  pthread_mutex_lock(&pool.lock);
  while (pool.running > 0) pthread_cond_wait(&pool.end, &pool.lock);
  pthread_mutex_unlock(&pool.lock);
  pthread_mutex_unlock(&pool.owner);
}
