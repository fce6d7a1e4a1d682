/* TLS of connections, by the system's OpenSSL 3. It is loaded when it is first asked for: a daemon without TLS needs none,
 * and its updates come with the system's. */
#ifndef VELTAIR_TLS_H
#define VELTAIR_TLS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

enum { TLS_BYTES = 1 << 15 /* of memory that a connection takes, about */ };

/* What the connections of a listener begin with: a certificate, its key, and whose certificates clients have to show. */
typedef struct tls_context tls_context;
/* The paths of PEM files, `authorities` NULL where clients show no certificate. `speaks`: the protocol's name for ALPN.
 * `names`: separated by commas, those in clients' certificates by which they are known. NULL: it cannot be used. */
tls_context *tls_context_new(const char *certificate, const char *key, const char *authorities, const char *speaks,
                             const char *names);
tls_context *tls_context_share(tls_context *of); /* one more reference */
void tls_context_release(tls_context *of);       /* which may be NULL */

/* One connection's. */
typedef struct tls tls;
tls *tls_new(tls_context *context, int fd); /* takes the reference; NULL without memory */
void tls_free(tls *of);                     /* which says goodbye; the socket stays open */
/* As recv() and send() do: EAGAIN in errno where more has to come or go first. */
ssize_t tls_receive(tls *of, uint8_t *target, size_t room);
ssize_t tls_send(tls *of, const uint8_t *data, size_t size);
bool tls_established(const tls *of);  /* both sides know each other */
bool tls_holds(const tls *of);        /* it has bytes for tls_receive that the socket has given away */
bool tls_waits_to_send(const tls *of); /* tls_receive goes on once the socket takes bytes */
const char *tls_client(const tls *of); /* the name by which the client is known; empty: none. As long as `of` lives */

#endif
