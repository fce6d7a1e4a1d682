/* Whole random rows read from memory and not used, as a measure for look-ups. Built by ember.py.
 *
 * `rows_read` adds up rows of `lines` cache lines at places that are known beforehand (no ids to check, no bags, nothing
 * stored) and asks for each `ahead` rows in advance. */
#include <stddef.h>
#include <stdint.h>

typedef float vector __attribute__((vector_size(64)));

#define READ(LINES)                                                                                                    \
    static float read_##LINES(const vector *table, const int64_t *rows, size_t count, size_t ahead)                    \
    {                                                                                                                  \
        vector sum[LINES] = {{0}};                                                                                     \
        for (size_t i = 0; i < count; i++) {                                                                           \
            if (ahead && i + ahead < count)                                                                            \
                for (int k = 0; k < LINES; k++)                                                                        \
                    __builtin_prefetch(table + rows[i + ahead] * LINES + k, 0, 3);                                     \
            for (int k = 0; k < LINES; k++)                                                                            \
                sum[k] += table[rows[i] * LINES + k];                                                                  \
        }                                                                                                              \
        for (int k = 1; k < LINES; k++)                                                                                \
            sum[0] += sum[k];                                                                                          \
        return sum[0][0];                                                                                              \
    }

READ(1)
READ(2)
READ(4)
READ(8)

float rows_read(const void *table, const int64_t *rows, size_t count, size_t lines, size_t ahead)
{
    switch (lines) {
    case 1: return read_1(table, rows, count, ahead);
    case 2: return read_2(table, rows, count, ahead);
    case 4: return read_4(table, rows, count, ahead);
    default: return read_8(table, rows, count, ahead);
    }
}
