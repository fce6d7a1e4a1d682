#include "budgets.h"

#include <netinet/in.h>
#include <string.h>

/* FNV-1a of the address without its port; IPv4 mapped into IPv6 counts as IPv4, a /64 of IPv6 as one client. */
static uint32_t place_of(const struct sockaddr_storage *from) {
  const uint8_t *bytes = (const uint8_t *)"";
  size_t size = 0;
  if (from->ss_family == AF_INET) {
    bytes = (const uint8_t *)&((const struct sockaddr_in *)from)->sin_addr;
    size = 4;
  } else if (from->ss_family == AF_INET6) {
    const struct in6_addr *address = &((const struct sockaddr_in6 *)from)->sin6_addr;
    const bool mapped = IN6_IS_ADDR_V4MAPPED(address);
    bytes = address->s6_addr + (mapped ? 12 : 0);
    size = mapped ? 4 : 8;
  }
  uint32_t hash = 2166136261u;
  for (size_t i = 0; i < size; i++) hash = (hash ^ bytes[i]) * 16777619u;
  return hash % ADDRESSES;
}

/* Counts one more unless there are `most`. */
static bool take(atomic_uint *count, uint32_t most) {
  if (atomic_fetch_add(count, 1) < most) return true;
  atomic_fetch_sub(count, 1);
  return false;
}

bool budget_connect(budgets *all, const struct sockaddr_storage *from, uint32_t *place) {
  *place = place_of(from);
  if (take(&all->connections, all->most.connections)) {
    if (take(&all->of_address[*place], all->most.address_connections)) return true;
    atomic_fetch_sub(&all->connections, 1);
  }
  atomic_fetch_add(&all->refused_connections, 1);
  return false;
}

void budget_disconnect(budgets *all, uint32_t place) {
  atomic_fetch_sub(&all->connections, 1);
  atomic_fetch_sub(&all->of_address[place], 1);
}

bool budget_allows(const budgets *all, uint64_t held, uint64_t more) {
  if (more > all->most.connection_memory || held > all->most.connection_memory - more) return false;
  if (atomic_load(&all->memory) + more <= all->most.memory) return true;
  const unsigned connections = atomic_load(&all->connections);
  return held + more <= all->most.memory / (connections ? connections : 1);
}

void budget_count(budgets *all, uint64_t *held, uint64_t now) {
  if (now == *held) return;
  atomic_fetch_add(&all->memory, now - *held); /* which wraps as it should where it shrinks */
  *held = now;
}

void budget_refuse(budgets *all, int number) { atomic_fetch_add(&all->refused[number], 1); }

bool budget_ask_python(budgets *all) { return take(&all->python_requests, all->most.python_requests); }

void budget_python_done(budgets *all) { atomic_fetch_sub(&all->python_requests, 1); }
