#include "claim_lines.h"

#include <stddef.h>
#include <string.h>

void empty_lines(claim_lines *lines) {
  lines->now = 0;
  for (uint32_t i = 0; i < MOST_STANDING; i++) lines->line[i] = (claim_line){.first = NOBODY};
  memset(lines->behind, 0xFF, sizeof lines->behind); /* NOT_WAITING */
}

static uint64_t later(uint64_t one, uint64_t other) { return one > other ? one : other; }

void join_line(claim_lines *lines, uint32_t tenant, uint32_t position) {
  claim_line *const line = &lines->line[tenant];
  if (lines->behind[position] != NOT_WAITING) return;
  lines->behind[position] = NOBODY;
  if (line->first == NOBODY) {
    line->start = later(line->start, lines->now);
    line->first = (uint16_t)position;
  } else {
    lines->behind[line->last] = (uint16_t)position;
  }
  line->last = (uint16_t)position;
}

claim_line *next_line(claim_lines *lines) {
  claim_line *next = NULL;
  for (claim_line *line = lines->line; line < lines->line + MOST_STANDING; line++)
    if (line->first != NOBODY && (!next || line->start < next->start)) next = line;
  return next;
}

void leave_line(claim_lines *lines, claim_line *line) {
  const uint16_t left = line->first;
  line->first = lines->behind[left];
  lines->behind[left] = NOT_WAITING;
}

void count_service(claim_lines *lines, uint32_t tenant, uint64_t elapsed_ns, uint32_t weight) {
  enum { FRACTION = 24 }; /* bits, of a nanosecond for each unit of weight */
  claim_line *const line = &lines->line[tenant];
  lines->now = later(line->start, lines->now); /* it was not in line if the state was open */
  line->start = lines->now + ((elapsed_ns + 1) << FRACTION) / (weight ? weight : 1);
}
