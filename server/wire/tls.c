#define _GNU_SOURCE
#include "tls.h"

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* From OpenSSL 3's ssl.h, tls1.h, x509.h and x509v3.h, which are stable as long as the library is libssl.so.3. */
enum { PEM = 1, VERIFY_PEER = 1, VERIFY_REQUIRED = 2, ERROR_WANT_READ = 2, ERROR_WANT_WRITE = 3,
       ERROR_ZERO_RETURN = 6, CTRL_MODE = 33, CTRL_SESSION_CACHE = 44, CTRL_LEAST_VERSION = 123, TLS1_2 = 0x303,
       MODE_PARTIAL_WRITE = 1, MODE_MOVING_BUFFER = 2, MODE_RELEASE_BUFFERS = 16, ALPN_OK = 0, ALPN_ALERT = 2,
       HOST_NO_WILDCARDS = 2 };
static const uint64_t NO_RENEGOTIATION = UINT64_C(1) << 30;
/* An end without close_notify is one like any other: requests say themselves where they end (RFC 9112, 9.8). */
static const uint64_t IGNORE_UNEXPECTED_END = UINT64_C(1) << 7;

typedef int alpn_select(void *ssl, const uint8_t **out, uint8_t *out_size, const uint8_t *in, unsigned in_size, void *about);

/* What is called of it: result, name, arguments. */
#define FUNCTIONS(F)                                                                                       \
  F(const void *, TLS_server_method, (void))                                                               \
  F(void *, SSL_CTX_new, (const void *method))                                                             \
  F(void, SSL_CTX_free, (void *context))                                                                   \
  F(long, SSL_CTX_ctrl, (void *context, int command, long value, void *pointer))                           \
  F(uint64_t, SSL_CTX_set_options, (void *context, uint64_t options))                                      \
  F(void, SSL_CTX_set_default_passwd_cb, (void *context, int (*ask)(char *, int, int, void *)))            \
  F(int, SSL_CTX_use_certificate_chain_file, (void *context, const char *path))                            \
  F(int, SSL_CTX_use_PrivateKey_file, (void *context, const char *path, int type))                         \
  F(int, SSL_CTX_check_private_key, (const void *context))                                                 \
  F(int, SSL_CTX_load_verify_locations, (void *context, const char *file, const char *folder))             \
  F(void *, SSL_load_client_CA_file, (const char *path))                                                   \
  F(void, SSL_CTX_set_client_CA_list, (void *context, void *names))                                        \
  F(void, SSL_CTX_set_verify, (void *context, int mode, void *callback))                                   \
  F(int, SSL_CTX_set_session_id_context, (void *context, const uint8_t *id, unsigned size))                \
  F(void, SSL_CTX_set_alpn_select_cb, (void *context, alpn_select *select, void *about))                   \
  F(void *, SSL_new, (void *context))                                                                      \
  F(void, SSL_free, (void *ssl))                                                                           \
  F(int, SSL_set_fd, (void *ssl, int fd))                                                                  \
  F(void, SSL_set_accept_state, (void *ssl))                                                               \
  F(int, SSL_read, (void *ssl, void *target, int room))                                                    \
  F(int, SSL_write, (void *ssl, const void *data, int size))                                               \
  F(int, SSL_get_error, (const void *ssl, int result))                                                     \
  F(int, SSL_pending, (const void *ssl))                                                                   \
  F(int, SSL_is_init_finished, (const void *ssl))                                                          \
  F(int, SSL_shutdown, (void *ssl))                                                                        \
  F(void *, SSL_get1_peer_certificate, (const void *ssl))                                                  \
  F(int, X509_check_host, (void *certificate, const char *name, size_t size, unsigned flags, char **found)) \
  F(void, X509_free, (void *certificate))                                                                  \
  F(void, ERR_clear_error, (void))

#define POINTER(result, name, arguments) result (*name) arguments;
static struct {
  FUNCTIONS(POINTER)
} openssl;
static bool loaded;

#define FIND(result, name, arguments) && (*(void **)&openssl.name = dlsym(library, #name))

static void load(void) {
  void *const library = dlopen("libssl.so.3", RTLD_NOW | RTLD_LOCAL);
  loaded = library FUNCTIONS(FIND);
}

struct tls_context {
  atomic_int references;
  void *context;
  char *names;
  char speaks[16]; /* behind its length, as ALPN has it */
};

struct tls {
  tls_context *context;
  void *ssl;
  bool failed, waits_to_send;
  const char *client; /* NULL until both sides know each other */
  char name[256];
};

/* Nobody is asked for a passphrase: a file that has one cannot be used. */
static int no_passphrase(char *target, int room, int writing, void *about) {
  (void)target, (void)room, (void)writing, (void)about;
  return 0;
}

static int select_protocol(void *ssl, const uint8_t **out, uint8_t *out_size, const uint8_t *in, unsigned in_size, void *about) {
  (void)ssl;
  const uint8_t *const ours = about;
  for (unsigned at = 0; at < in_size && in[at] < in_size - at; at += 1u + in[at]) {
    if (memcmp(in + at, ours, 1u + ours[0])) continue;
    *out = in + at + 1;
    *out_size = ours[0];
    return ALPN_OK;
  }
  return ALPN_ALERT;
}

static bool set_up(tls_context *new, const char *certificate, const char *key, const char *authorities) {
  void *const context = new->context;
  openssl.SSL_CTX_ctrl(context, CTRL_LEAST_VERSION, TLS1_2, NULL);
  openssl.SSL_CTX_ctrl(context, CTRL_MODE, MODE_PARTIAL_WRITE | MODE_MOVING_BUFFER | MODE_RELEASE_BUFFERS, NULL);
  openssl.SSL_CTX_ctrl(context, CTRL_SESSION_CACHE, 0, NULL); /* sessions go on by tickets, which clients keep */
  openssl.SSL_CTX_set_options(context, NO_RENEGOTIATION | IGNORE_UNEXPECTED_END);
  openssl.SSL_CTX_set_default_passwd_cb(context, no_passphrase);
  openssl.SSL_CTX_set_alpn_select_cb(context, select_protocol, new->speaks);
  if (openssl.SSL_CTX_use_certificate_chain_file(context, certificate) != 1 ||
      openssl.SSL_CTX_use_PrivateKey_file(context, key, PEM) != 1 || openssl.SSL_CTX_check_private_key(context) != 1)
    return false;
  if (!authorities) return true;
  void *const names = openssl.SSL_load_client_CA_file(authorities);
  if (!names) return false;
  openssl.SSL_CTX_set_client_CA_list(context, names); /* which takes them */
  openssl.SSL_CTX_set_verify(context, VERIFY_PEER | VERIFY_REQUIRED, NULL);
  return openssl.SSL_CTX_load_verify_locations(context, authorities, NULL) == 1 &&
         openssl.SSL_CTX_set_session_id_context(context, (const uint8_t *)"veltair", 7) == 1;
}

tls_context *tls_context_new(const char *certificate, const char *key, const char *authorities, const char *speaks,
                             const char *names) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  pthread_once(&once, load);
  tls_context *new = loaded ? calloc(1, sizeof *new) : NULL;
  if (!new) return NULL;
  atomic_init(&new->references, 1);
  new->speaks[0] = (char)snprintf(new->speaks + 1, sizeof new->speaks - 1, "%s", speaks);
  new->names = strdup(names);
  new->context = openssl.SSL_CTX_new(openssl.TLS_server_method());
  const bool usable = new->names && new->context && set_up(new, certificate, key, authorities);
  openssl.ERR_clear_error();
  if (usable) return new;
  tls_context_release(new);
  return NULL;
}

tls_context *tls_context_share(tls_context *of) {
  atomic_fetch_add(&of->references, 1);
  return of;
}

void tls_context_release(tls_context *of) {
  if (!of || atomic_fetch_sub(&of->references, 1) != 1) return;
  openssl.SSL_CTX_free(of->context);
  free(of->names);
  free(of);
}

tls *tls_new(tls_context *context, int fd) {
  tls *new = calloc(1, sizeof *new);
  void *const ssl = new ? openssl.SSL_new(context->context) : NULL;
  if (!ssl || openssl.SSL_set_fd(ssl, fd) != 1) {
    if (ssl) openssl.SSL_free(ssl);
    free(new);
    tls_context_release(context);
    return NULL;
  }
  openssl.SSL_set_accept_state(ssl);
  *new = (tls){.context = context, .ssl = ssl};
  return new;
}

void tls_free(tls *of) {
  openssl.ERR_clear_error();
  if (!of->failed && of->client) openssl.SSL_shutdown(of->ssl);
  openssl.SSL_free(of->ssl);
  openssl.ERR_clear_error();
  tls_context_release(of->context);
  free(of);
}

/* The first of the known names that is in the client's certificate. */
static void find_client(tls *of) {
  of->client = "";
  void *const certificate = openssl.SSL_get1_peer_certificate(of->ssl);
  if (!certificate) return;
  for (const char *at = of->context->names; *at;) {
    const size_t size = strcspn(at, ",");
    if (size && size < sizeof of->name && openssl.X509_check_host(certificate, at, size, HOST_NO_WILDCARDS, NULL) == 1) {
      memcpy(of->name, at, size);
      of->client = of->name;
      break;
    }
    at += size + (at[size] == ',');
  }
  openssl.X509_free(certificate);
}

/* What a result other than bytes means. */
static ssize_t outcome(tls *of, int result) {
  const int error = openssl.SSL_get_error(of->ssl, result);
  if (error == ERROR_ZERO_RETURN) return 0;
  of->waits_to_send = error == ERROR_WANT_WRITE;
  if (error == ERROR_WANT_READ || error == ERROR_WANT_WRITE) {
    errno = EAGAIN;
  } else {
    of->failed = true;
    openssl.ERR_clear_error();
    errno = EPROTO;
  }
  return -1;
}

ssize_t tls_receive(tls *of, uint8_t *target, size_t room) {
  enum { MOST = 1 << 30 };
  openssl.ERR_clear_error(); /* of other connections */
  of->waits_to_send = false;
  const int got = openssl.SSL_read(of->ssl, target, (int)(room < MOST ? room : MOST));
  if (!of->client && openssl.SSL_is_init_finished(of->ssl)) find_client(of);
  return got > 0 ? got : outcome(of, got);
}

ssize_t tls_send(tls *of, const uint8_t *data, size_t size) {
  enum { MOST = 1 << 30 };
  openssl.ERR_clear_error();
  const int sent = openssl.SSL_write(of->ssl, data, (int)(size < MOST ? size : MOST));
  if (sent > 0) return sent;
  const ssize_t result = outcome(of, sent);
  of->waits_to_send = false; /* who sends asks about that anyway */
  if (!result) errno = EPIPE;
  return -1;
}

bool tls_established(const tls *of) { return of->client; }
bool tls_holds(const tls *of) { return !of->failed && openssl.SSL_pending(of->ssl); }
bool tls_waits_to_send(const tls *of) { return of->waits_to_send; }
const char *tls_client(const tls *of) { return of->client ? of->client : ""; }
