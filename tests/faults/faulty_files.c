/* File systems that fail: `LD_PRELOAD` it, and write a line `CALL ERRNO ENDING` into the file that FAULTY_FILES names.
   Calls on paths that end so fail with that error number, or do not return while the line stands where it is -1.
   CALL is stat, open, list or read. */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

/* What the rule says of a path: an error number, -1 to hang, or 0. */
static int rule(const char *call, const char *path) {
  const char *name = getenv("FAULTY_FILES");
  const int file = name ? (int)syscall(SYS_openat, AT_FDCWD, name, O_RDONLY | O_CLOEXEC) : -1;
  char text[PATH_MAX + 64] = "", wanted[16], ending[PATH_MAX];
  int number = 0;
  if (file < 0)
    return 0;
  const ssize_t size = syscall(SYS_pread64, file, text, sizeof text - 1, 0);
  close(file);
  if (size <= 0 || sscanf(text, "%15s %d %4095s", wanted, &number, ending) != 3 || strcmp(call, wanted))
    return 0;
  const size_t length = strlen(path), end = strlen(ending);
  return length >= end && !strcmp(path + length - end, ending) ? number : 0;
}

/* Whether the call fails; errno says how. */
static int fails(const char *call, const char *path) {
  const int before = errno;
  int number;
  while ((number = rule(call, path)) < 0)
    nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
  errno = number ? number : before;
  return number != 0;
}

static int fails_at(const char *call, int folder, const char *path) {
  char whole[2 * PATH_MAX] = "", link[64];
  if (*path != '/' && folder != AT_FDCWD) {
    snprintf(link, sizeof link, "/proc/self/fd/%d", folder);
    const ssize_t size = readlink(link, whole, PATH_MAX - 2);
    if (size > 0)
      strcpy(whole + size, "/");
  }
  strncat(whole, path, PATH_MAX - 1);
  return fails(call, whole);
}

static int fails_in(int file) {
  char path[PATH_MAX] = "", link[64];
  snprintf(link, sizeof link, "/proc/self/fd/%d", file);
  return readlink(link, path, PATH_MAX - 1) > 0 && fails("read", path);
}

#define REAL(type, name, ...) ((type(*)(__VA_ARGS__))dlsym(RTLD_NEXT, name))
#define OPEN(name)                                                                                                     \
  int name(const char *path, int flags, ...) {                                                                         \
    va_list rest;                                                                                                      \
    va_start(rest, flags);                                                                                             \
    const int mode = va_arg(rest, int);                                                                                \
    va_end(rest);                                                                                                      \
    return fails("open", path) ? -1 : REAL(int, #name, const char *, int, ...)(path, flags, mode);                     \
  }
#define OPENAT(name)                                                                                                   \
  int name(int folder, const char *path, int flags, ...) {                                                             \
    va_list rest;                                                                                                      \
    va_start(rest, flags);                                                                                             \
    const int mode = va_arg(rest, int);                                                                                \
    va_end(rest);                                                                                                      \
    if (fails_at("open", folder, path))                                                                                \
      return -1;                                                                                                       \
    return REAL(int, #name, int, const char *, int, ...)(folder, path, flags, mode);                                   \
  }
#define STAT(name, type)                                                                                               \
  int name(const char *path, type *found) {                                                                            \
    return fails("stat", path) ? -1 : REAL(int, #name, const char *, type *)(path, found);                             \
  }
#define STATAT(name, type)                                                                                             \
  int name(int folder, const char *path, type *found, int flags) {                                                     \
    if (fails_at("stat", folder, path))                                                                                \
      return -1;                                                                                                       \
    return REAL(int, #name, int, const char *, type *, int)(folder, path, found, flags);                               \
  }
#define PREADV2(name)                                                                                                  \
  ssize_t name(int file, const struct iovec *pieces, int count, off_t offset, int flags) {                             \
    if (fails_in(file))                                                                                                \
      return -1;                                                                                                       \
    return REAL(ssize_t, #name, int, const struct iovec *, int, off_t, int)(file, pieces, count, offset, flags);       \
  }

OPEN(open) OPEN(open64)
OPENAT(openat) OPENAT(openat64)
STAT(stat, struct stat) STAT(stat64, struct stat64) STAT(lstat, struct stat) STAT(lstat64, struct stat64)
STATAT(fstatat, struct stat) STATAT(fstatat64, struct stat64)
PREADV2(preadv2) PREADV2(preadv64v2)

ssize_t read(int file, void *content, size_t size) {
  return fails_in(file) ? -1 : REAL(ssize_t, "read", int, void *, size_t)(file, content, size);
}

DIR *opendir(const char *path) { return fails("list", path) ? NULL : REAL(DIR *, "opendir", const char *)(path); }
