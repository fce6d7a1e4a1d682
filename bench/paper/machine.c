/* What the cores of this machine reach: `machine CORE…` prints one JSON object. Built and run by machine_model.py.
 *
 * Bandwidth is that of loads: each core reads its own buffer over and over, in rounds that begin together; the best
 * of several rounds counts. The clock is that of dependent additions, one a cycle. */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define ROUNDS 5
#define LINE 8 /* 64-bit words */

static pthread_barrier_t begin, end;
static size_t words;   /* of each core's buffer */
static int passes;
static volatile uint64_t sink;

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1e9 + t.tv_nsec;
}

typedef uint64_t vector __attribute__((vector_size(64)));

static void *reader(void *core)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET((int)(intptr_t)core, &set);
    sched_setaffinity(0, sizeof set, &set);
    uint64_t *buffer = aligned_alloc(1 << 21, words * 8);
    for (size_t i = 0; i < words; i += LINE)
        buffer[i] = i;
    for (int round = 0; round <= ROUNDS; round++) {
        vector sum[4] = {{0}};
        pthread_barrier_wait(&begin);
        for (int pass = 0; pass < passes; pass++)
            for (size_t i = 0; i < words; i += 4 * LINE)
                for (int k = 0; k < 4; k++)
                    sum[k] |= *(vector *)(buffer + i + k * LINE);
        sink = (sum[0] | sum[1] | sum[2] | sum[3])[0];
        pthread_barrier_wait(&end);
    }
    free(buffer);
    return NULL;
}

/* GB/s of all cores together on buffers of `bytes` each. */
static double reading(int count, char **cores, size_t bytes, size_t total)
{
    pthread_t threads[count];
    words = bytes / 8;
    passes = total / bytes ? total / bytes : 1;
    pthread_barrier_init(&begin, NULL, count + 1);
    pthread_barrier_init(&end, NULL, count + 1);
    for (int i = 0; i < count; i++)
        pthread_create(&threads[i], NULL, reader, (void *)(intptr_t)atoi(cores[i]));
    double best = 0;
    for (int round = 0; round <= ROUNDS; round++) {
        pthread_barrier_wait(&begin);
        double start = now();
        pthread_barrier_wait(&end);
        double rate = (double)bytes * passes * count / (now() - start);
        if (round && rate > best)
            best = rate;
    }
    for (int i = 0; i < count; i++)
        pthread_join(threads[i], NULL);
    return best;
}

static double clock_ghz(void)
{
    double best = 0;
    for (int round = 0; round < ROUNDS; round++) {
        uint64_t value = round, steps = 100000000;
        double start = now();
        for (uint64_t i = 0; i < steps / 8; i++)
            __asm__ volatile("add %0, %0\n add %0, %0\n add %0, %0\n add %0, %0\n"
                             "add %0, %0\n add %0, %0\n add %0, %0\n add %0, %0" : "+r"(value));
        double rate = steps / (now() - start);
        if (rate > best)
            best = rate;
    }
    return best;
}

int main(int argc, char **argv)
{
    if (argc < 4)
        return fprintf(stderr, "machine L3_BYTES MEMORY_BYTES CORE…\n"), 2;
    size_t l3 = strtoull(argv[1], NULL, 10), memory = strtoull(argv[2], NULL, 10);
    int count = argc - 3;
    printf("{\"clock_ghz\": %.3f", clock_ghz());
    printf(", \"l3_gb_s\": %.1f", reading(1, argv + 3, l3, 1UL << 30));
    printf(", \"core_gb_s\": %.1f", reading(1, argv + 3, memory, memory));
    printf(", \"dram_gb_s\": %.1f}\n", reading(count, argv + 3, memory, memory));
    return 0;
}
