/* The claims that wait, as the worker keeps them for itself: a line for each tenant, which it serves in turn. A claim is
 * its position, ring * CLAIMS + place.
 *
 * Start-time fair queueing (Goyal, Vin and Cheng, SIGCOMM 1996): a claim has a virtual time to start at, when the one
 * before it in its line has ended, or, where there is none, when the one was to start that is served now. The earliest is
 * served first, and what it takes counts by its tenant's weight. So whoever asks for little waits for nobody's line. */
#ifndef VELTAIR_CLAIM_LINES_H
#define VELTAIR_CLAIM_LINES_H

#include <stdint.h>

#include "standing_orders.h"

typedef struct {
  uint16_t first, last; /* positions; first is NOBODY where none waits */
  uint64_t start;       /* of the first, or of the next that comes */
} claim_line;

struct claim_lines {
  uint32_t looked_at[MOST_RINGS];       /* how many of each ring's claims were seen */
  claim_line line[MOST_STANDING];       /* of a tenant: by the number of its first order */
  uint64_t now;                         /* when the one was to start that is served */
  uint16_t behind[MOST_RINGS * CLAIMS]; /* of each claim; of the last one NOBODY, where it does not wait NOT_WAITING */
};

enum { NOT_WAITING = UINT16_MAX, NOBODY = NOT_WAITING - 1 };

void empty_lines(claim_lines *lines);

/* It waits behind those of its tenant, unless it waits already. */
void join_line(claim_lines *lines, uint32_t tenant, uint32_t position);

/* The line whose first claim is to be served next; NULL: all are empty. */
claim_line *next_line(claim_lines *lines);

/* Its first claim waits no more. */
void leave_line(claim_lines *lines, claim_line *line);

/* A claim of the tenant was served, and took that long. */
void count_service(claim_lines *lines, uint32_t tenant, uint64_t elapsed_ns, uint32_t weight);

#endif
