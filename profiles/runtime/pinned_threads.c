/* Threads for the parallel parts of kernels: one for each core, pinned to it for good.
 *
 * TVM's kernels reach their pool through a symbol that is filled in when a library is loaded; `start` puts `launch`
 * there. The thread that launches is one of the core set and runs task 0. Every other core's thread is offered one
 * task; an offer that nobody has taken up by the time the launcher has nothing else to do is run by the launcher
 * itself, so that a sleeper or a thread whose core is busy delays nobody by more than the task takes.
 */
#define _GNU_SOURCE
#include "pinned_threads.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "ffi.h"

enum { MAX_CORES = 1024, LINE = 128 /* bytes: the prefetcher takes cache lines in pairs */ };
enum { PATIENCE = 4096 /* pauses in a row before the core is offered to others */ };
enum { GRACE = 8 /* pauses before the launcher looks for offers that nobody took: taking costs the taker too */ };

typedef struct {
  void *unused;
  int32_t tasks;
} group; /* TVMParallelGroupEnv */
typedef int (*task_body)(int task, group *of, void *data);

/* Who writes what has a cache line of its own: a line moves between two cores only when it brings news. */
typedef struct {
  _Alignas(LINE) atomic_uint offered; /* counts offers; what is offered stands in the fields below */
  atomic_int awake;                   /* in a block: never falls asleep */
  int task;
  task_body body;
  void *data;
  group of;
  _Alignas(LINE) atomic_uint taken; /* the last offer that was taken up, by the member or by the launcher */
  _Alignas(LINE) atomic_uint done;  /* the last offer whose task has run */
  _Alignas(LINE) atomic_int sleeping;
  int core;
} member;

static member *members[MAX_CORES]; /* by core */
static member *team[MAX_CORES];    /* those of the present core set besides the launcher; team[i] runs task i + 1 */
static int others;                 /* how many */
static int64_t linger_ns;          /* how long after a block a thread waits for the next one before it sleeps */
static atomic_flag in_use = ATOMIC_FLAG_INIT; /* the team has one launcher at a time */

static atomic_bool in_block; /* nobody of the team sleeps */
static _Alignas(LINE) _Atomic(void *) raised; /* the first error of a launch that a member raised */

static inline void pause_core(void) {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

static void futex(atomic_int *word, int operation, int value) {
  syscall(SYS_futex, word, operation | FUTEX_PRIVATE_FLAG, value, NULL, NULL, 0);
}

static int64_t now_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * INT64_C(1000000000) + now.tv_nsec;
}

static void perform(task_body body, int task, group *of, void *data) {
  if (body(task, of, data) == 0) return;
  void *error = NULL, *none = NULL;
  TVMFFIErrorMoveFromRaised(&error);
  if (error && !atomic_compare_exchange_strong(&raised, &none, error)) TVMFFIObjectDecRef(error);
}

static bool take(member *m, unsigned offer) {
  unsigned before = offer - 1;
  return atomic_compare_exchange_strong_explicit(&m->taken, &before, offer, memory_order_acquire, memory_order_relaxed);
}

static void wake(member *m) {
  if (!atomic_load(&m->sleeping)) return;
  atomic_store(&m->sleeping, 0);
  futex(&m->sleeping, FUTEX_WAKE, 1);
}

/* Either the launcher sees `sleeping` or the member sees what the launcher wrote before it looked: all of it is in one
 * total order. */
static void sleep_until_woken(member *m, unsigned seen) {
  atomic_store(&m->sleeping, 1);
  if (atomic_load(&m->offered) != seen || atomic_load(&m->awake)) atomic_store(&m->sleeping, 0);
  while (atomic_load(&m->sleeping)) futex(&m->sleeping, FUTEX_WAIT, 1);
}

static void *serve(void *argument) {
  member *m = argument;
  unsigned seen = 0;
  int64_t until = 0; /* when to sleep; 0: that is not set yet */
  for (unsigned turn = 1;; turn++) {
    const unsigned offer = atomic_load_explicit(&m->offered, memory_order_acquire);
    if (offer != seen) {
      seen = offer;
      if (!take(m, offer)) continue;
      perform(m->body, m->task, &m->of, m->data);
      atomic_store_explicit(&m->done, offer, memory_order_release);
      until = 0;
    } else if (atomic_load_explicit(&m->awake, memory_order_relaxed)) {
      until = 0;
      if (turn % PATIENCE == 0) sched_yield();
    } else if (until == 0) {
      until = now_ns() + linger_ns;
    } else if (now_ns() < until) {
      sched_yield(); /* whoever has been given this core meanwhile gets it now */
    } else {
      sleep_until_woken(m, seen);
      until = 0;
    }
    pause_core();
  }
  return NULL;
}

static int alone(task_body body, void *data, int tasks) {
  group of = {NULL, tasks};
  for (int task = 0; task < tasks; task++)
    if (body(task, &of, data)) return -1;
  return 0;
}

static bool finished(member *m) {
  return atomic_load_explicit(&m->done, memory_order_acquire) ==
         atomic_load_explicit(&m->offered, memory_order_relaxed);
}

/* TVMBackendParallelLaunch: all tasks have run when it returns. `tasks` of 0 are as many as there are cores. */
static int launch(task_body body, void *data, int tasks) {
  if (tasks == 0 && others == 0) return alone(body, data, 1);
  /* Launched by a task, or by a second thread while the first one is at it. */
  if (atomic_flag_test_and_set_explicit(&in_use, memory_order_acquire)) return alone(body, data, tasks ? tasks : others + 1);
  if (tasks == 0) tasks = others + 1;
  group of = {NULL, tasks};
  const bool awake = atomic_load_explicit(&in_block, memory_order_relaxed);
  const int offers = tasks - 1 < others ? tasks - 1 : others;
  for (int i = 0; i < offers; i++) {
    member *m = team[i];
    m->body = body, m->data = data, m->of = of;
    const unsigned offer = atomic_load_explicit(&m->offered, memory_order_relaxed) + 1;
    if (awake) {
      atomic_store_explicit(&m->offered, offer, memory_order_release);
    } else {
      atomic_store(&m->offered, offer);
      wake(m);
    }
  }
  perform(body, 0, &of, data);
  for (int task = offers + 1; task < tasks; task++) perform(body, task, &of, data);
  for (int turn = 0; turn < GRACE && offers && !finished(team[offers - 1]); turn++) pause_core();
  for (int i = 0; i < offers; i++) {
    member *m = team[i];
    const unsigned offer = atomic_load_explicit(&m->offered, memory_order_relaxed);
    if (finished(m) || !take(m, offer)) continue;
    perform(body, i + 1, &of, data);
    atomic_store_explicit(&m->done, offer, memory_order_relaxed);
  }
  for (int i = 0; i < offers; i++) {
    for (unsigned turn = 1; !finished(team[i]); turn++) {
      pause_core();
      if (turn % PATIENCE == 0) sched_yield(); /* its core may be this very one */
    }
  }
  void *error = atomic_exchange_explicit(&raised, NULL, memory_order_relaxed);
  atomic_flag_clear_explicit(&in_use, memory_order_release);
  if (!error) return 0;
  TVMFFIErrorSetRaised(error);
  TVMFFIObjectDecRef(error);
  return -1;
}

void pool_awake(void) {
  for (int i = 0; i < others; i++) {
    atomic_store(&team[i]->awake, 1);
    wake(team[i]);
  }
  atomic_store_explicit(&in_block, true, memory_order_relaxed);
}

void pool_asleep(void) {
  atomic_store_explicit(&in_block, false, memory_order_relaxed);
  for (int i = 0; i < others; i++) atomic_store_explicit(&team[i]->awake, 0, memory_order_relaxed);
}

static int fail(const char *what, int core, int number) {
  char text[200];
  snprintf(text, sizeof text, "%s core %d: %s", what, core, strerror(number));
  TVMFFIErrorSetRaisedFromCStr("ValueError", text);
  return -1;
}

static int start_member(int core) {
  pthread_attr_t attributes;
  pthread_t thread;
  cpu_set_t cpus;
  sigset_t all, before;
  member *m = aligned_alloc(LINE, sizeof *m);
  if (!m) return ENOMEM;
  *m = (member){.core = core};
  CPU_ZERO(&cpus);
  CPU_SET(core, &cpus);
  pthread_attr_init(&attributes);
  pthread_attr_setaffinity_np(&attributes, sizeof cpus, &cpus);
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before); /* signals are the launcher's business */
  /* A thread begins with the name of its creator. To name it later is to write a file, which a sandbox denies. */
  char name[16], own[16];
  pthread_getname_np(pthread_self(), own, sizeof own);
  snprintf(name, sizeof name, "veltair-core%d", core % 1000);
  pthread_setname_np(pthread_self(), name);
  int failed = pthread_create(&thread, &attributes, serve, m);
  pthread_setname_np(pthread_self(), own);
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  pthread_attr_destroy(&attributes);
  if (failed) {
    free(m);
    return failed;
  }
  pthread_detach(thread);
  members[core] = m;
  return 0;
}

FFI_EXPORT(awake) {
  pool_awake();
  return 0;
}

FFI_EXPORT(asleep) {
  pool_asleep();
  return 0;
}

/* set_aside(): within a block, lets the team sleep; returns whether it was awake, for `awake` to end this. */
FFI_EXPORT(set_aside) {
  const bool awake = atomic_load_explicit(&in_block, memory_order_relaxed);
  pool_asleep();
  *result = (ffi_any){.type_index = 1, .integer = awake};
  return 0;
}

/* start(linger_ns, core, …): a thread for each core that has none; libraries loaded from here on use them. */
FFI_EXPORT(start) {
  static bool registered;
  linger_ns = arguments[0].integer;
  for (int32_t i = 1; i < count; i++) {
    int64_t core = arguments[i].integer;
    if (core < 0 || core >= MAX_CORES) return fail("no thread for", (int)core, EINVAL);
    int failed = members[core] ? 0 : start_member((int)core);
    if (failed) return fail("no thread for", (int)core, failed);
  }
  if (!registered && TVMFFIEnvModRegisterContextSymbol("__TVMBackendParallelLaunch", (void *)launch)) return -1;
  registered = true;
  return 0;
}

/* point(core, …): the core set from the next launch on; the launcher runs on the first. */
FFI_EXPORT(point) {
  for (int32_t i = 0; i < count; i++) {
    int64_t core = arguments[i].integer;
    if (core < 0 || core >= MAX_CORES || !members[core]) return fail("no thread for", (int)core, EINVAL);
  }
  while (atomic_flag_test_and_set_explicit(&in_use, memory_order_acquire)) sched_yield();
  pool_asleep();
  others = count - 1;
  for (int i = 0; i < others; i++) {
    team[i] = members[arguments[i + 1].integer];
    team[i]->task = i + 1;
  }
  atomic_flag_clear_explicit(&in_use, memory_order_release);
  return 0;
}
