/* What clients may use up before anything is decided about their queries: connections, memory, time. */
#ifndef VELTAIR_BUDGETS_H
#define VELTAIR_BUDGETS_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

/* config.LimitsConfig */
typedef struct {
  uint64_t memory, connection_memory;            /* bytes of requests and answers on their way: of all, and of one */
  int64_t head_ns, body_ns, idle_ns, unread_ns;  /* until a head, a body, another request has come; an answer is read */
  uint32_t connections, address_connections;     /* at the same time: in all, and of one address */
  uint32_t streams, header_bytes;                /* of a connection over HTTP/2; of a head */
  uint32_t python_requests, unused;              /* at the same time, that Python handles */
} limits;

enum { ADDRESSES = 1024 /* counted apart; addresses whose hashes are equal share a count */, REASONS = 32 };

typedef struct {
  limits most;
  atomic_uint_fast64_t memory;
  atomic_uint connections, python_requests;
  atomic_uint of_address[ADDRESSES];
  atomic_uint_fast64_t refused_connections, expired_connections; /* so far */
  atomic_uint_fast64_t refused[REASONS]; /* so far: requests whose tenant nobody knows, by RefusalReason.number */
} budgets;

/* Counts a connection; false: there are too many. `place`: what budget_disconnect needs. */
bool budget_connect(budgets *all, const struct sockaddr_storage *from, uint32_t *place);
void budget_disconnect(budgets *all, uint32_t place);

/* Whether a connection that holds so many bytes may take `more`. Where the memory is spent, those that hold less than
 * their equal part may. */
bool budget_allows(const budgets *all, uint64_t held, uint64_t more);
/* It holds so many by now. */
void budget_count(budgets *all, uint64_t *held, uint64_t now);

/* A request is refused for this reason before its tenant is known. */
void budget_refuse(budgets *all, int number);

/* Python handles one more request; false: it has enough. */
bool budget_ask_python(budgets *all);
void budget_python_done(budgets *all);

#endif
