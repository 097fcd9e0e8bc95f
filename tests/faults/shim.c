// Loaded before libc: lets one call of a chosen kind on a chosen path meet a fault.
//
// The campaign and all processes that it starts share one page, the control block, which says what
// happens to which call. Calls inside libc do not pass here; those of Python, numba and pyarrow do.

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>

enum { OPEN = 1, READ = 2, WRITE = 4, RENAME = 8, MKDIR = 16, SEND = 32, RECEIVE = 64, PAIR = 128 };
enum { FAIL, KILL, STOP, SLOW, VANISH, MEMORY, FILES };

struct control {  // as `inject.Control` packs it
  volatile int32_t armed, worker;  // worker: only worker processes (1), only others (0)
  uint32_t calls;
  int32_t how, value;  // value: an error number, or milliseconds
  volatile int32_t skip, left, hits;
  int64_t clock_shift_s;
  char pattern[256], folder[256];
};

static struct control *control;
static int is_worker;

__attribute__((constructor)) static void begin(void) {
  const char *path = getenv("FAULT_CONTROL");
  int file = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
  if (file < 0) return;
  void *page = mmap(NULL, sizeof *control, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  close(file);
  if (page == MAP_FAILED) return;
  char line[4096] = {0};
  file = open("/proc/self/cmdline", O_RDONLY | O_CLOEXEC);
  if (file >= 0 && read(file, line, sizeof line - 1) > 0)
    is_worker = memmem(line, sizeof line, "dcp_planner.workers.program", 27) != NULL;
  close(file);
  control = page;
}

static void limit(int what) {
  struct rlimit found;
  getrlimit(what, &found);
  found.rlim_cur = 0;
  setrlimit(what, &found);
}

// True if this call must fail; `errno` says why.
static int meets(uint32_t call, const char *path, int file) {
  char link[64], target[4096];
  if (!control || !control->armed || !(control->calls & call) || control->worker != is_worker)
    return 0;
  if (!path) {
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    ssize_t size = file < 0 ? 0 : readlink(link, target, sizeof target - 1);
    target[size < 0 ? 0 : size] = 0;
    path = target;
  }
  if (fnmatch(control->pattern, path, 0)) return 0;
  if (__atomic_fetch_sub(&control->skip, 1, __ATOMIC_SEQ_CST) > 0) return 0;
  if (__atomic_fetch_sub(&control->left, 1, __ATOMIC_SEQ_CST) <= 0) return 0;
  __atomic_fetch_add(&control->hits, 1, __ATOMIC_SEQ_CST);
  struct timespec nap = {control->value / 1000, control->value % 1000 * 1000000L};
  char gone[300];
  switch (control->how) {
    case FAIL: errno = control->value; return 1;
    case KILL: kill(getpid(), SIGKILL); return 0;
    case STOP: kill(getpid(), SIGSTOP); return 0;
    case SLOW: nanosleep(&nap, NULL); return 0;
    case VANISH:  // for all who know its name
      snprintf(gone, sizeof gone, "%s.gone", control->folder);
      syscall(82, control->folder, gone);  // rename, x86-64; not through here again
      return 0;
    case MEMORY: limit(RLIMIT_DATA); return 0;
    default: limit(RLIMIT_NOFILE); return 0;
  }
}

#define NEXT(name) static __typeof__(&name) next; if (!next) next = (__typeof__(&name))dlsym(RTLD_NEXT, #name)

#define OPENER(name) \
  int name(const char *path, int flags, ...) { \
    NEXT(name); va_list rest; va_start(rest, flags); mode_t mode = va_arg(rest, mode_t); va_end(rest); \
    return meets(OPEN, path, -1) ? -1 : next(path, flags, mode); }
OPENER(open)
OPENER(open64)

#define OPENER_AT(name) \
  int name(int folder, const char *path, int flags, ...) { \
    NEXT(name); va_list rest; va_start(rest, flags); mode_t mode = va_arg(rest, mode_t); va_end(rest); \
    return meets(OPEN, path, -1) ? -1 : next(folder, path, flags, mode); }
OPENER_AT(openat)
OPENER_AT(openat64)

ssize_t read(int file, void *data, size_t size) {
  NEXT(read); return meets(READ, NULL, file) ? -1 : next(file, data, size); }
ssize_t write(int file, const void *data, size_t size) {
  NEXT(write);
  if (!meets(WRITE, NULL, file)) return next(file, data, size);
  int reason = errno;  // a full disk takes a part first
  if (control->how == FAIL && size > 1 && reason == ENOSPC) next(file, data, size / 2);
  errno = reason;
  return -1; }
int rename(const char *old, const char *new) {
  NEXT(rename); return meets(RENAME, new, -1) ? -1 : next(old, new); }
int mkdir(const char *path, mode_t mode) {
  NEXT(mkdir); return meets(MKDIR, path, -1) ? -1 : next(path, mode); }
ssize_t send(int file, const void *data, size_t size, int flags) {
  NEXT(send); return meets(SEND, NULL, file) ? -1 : next(file, data, size, flags); }
ssize_t recv(int file, void *data, size_t size, int flags) {
  NEXT(recv); return meets(RECEIVE, NULL, file) ? -1 : next(file, data, size, flags); }
int socketpair(int domain, int type, int protocol, int files[2]) {
  NEXT(socketpair); return meets(PAIR, "socketpair", -1) ? -1 : next(domain, type, protocol, files); }
int clock_gettime(clockid_t clock, struct timespec *now) {
  NEXT(clock_gettime);
  int found = next(clock, now);
  if (!found && clock == CLOCK_REALTIME && control && control->armed && control->clock_shift_s) {
    now->tv_sec += control->clock_shift_s;
    __atomic_fetch_add(&control->hits, 1, __ATOMIC_SEQ_CST);
  }
  return found; }
