/* Preloaded into a program: ends it, as SIGKILL would, at the CRASH_AT-th call that changes files. A write at which it ends is torn.
   Programs that it starts are left alone. Without CRASH_AT it writes the number of such calls to the file CRASH_COUNT when the program ends by itself. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

static atomic_long calls;
static long crash_at;

__attribute__((constructor)) static void begin(void) {
    const char *at = getenv("CRASH_AT");
    crash_at = at ? atol(at) : 0;
    unsetenv("LD_PRELOAD");
}

__attribute__((destructor)) static void end(void) {
    const char *path = getenv("CRASH_COUNT");
    FILE *file = path && !crash_at ? fopen(path, "w") : NULL;
    if (file) {
        fprintf(file, "%ld", atomic_load(&calls));
        fclose(file);
    }
}

/* Whether the end has come. */
static int strikes(void) { return atomic_fetch_add(&calls, 1) + 1 == crash_at; }

static int is_file(int fd) {
    struct stat found;
    return fstat(fd, &found) == 0 && S_ISREG(found.st_mode);
}

#define REAL(name) static __typeof__(&name) real; if (!real) real = (__typeof__(&name))dlsym(RTLD_NEXT, #name)
#define STRIKE() do { if (strikes()) _exit(137); } while (0)

ssize_t write(int fd, const void *bytes, size_t count) {
    REAL(write);
    if (is_file(fd) && strikes()) { (void)!real(fd, bytes, count / 2); _exit(137); }
    return real(fd, bytes, count);
}
ssize_t pwrite64(int fd, const void *bytes, size_t count, off64_t at) {
    REAL(pwrite64);
    if (is_file(fd) && strikes()) { (void)!real(fd, bytes, count / 2, at); _exit(137); }
    return real(fd, bytes, count, at);
}
ssize_t writev(int fd, const struct iovec *parts, int count) {
    REAL(writev);
    if (is_file(fd) && strikes()) { (void)!real(fd, parts, count / 2); _exit(137); }
    return real(fd, parts, count);
}
ssize_t pwritev(int fd, const struct iovec *parts, int count, off_t at) {
    REAL(pwritev);
    if (is_file(fd) && strikes()) { (void)!real(fd, parts, count / 2, at); _exit(137); }
    return real(fd, parts, count, at);
}
ssize_t pwritev64(int fd, const struct iovec *parts, int count, off64_t at) {
    REAL(pwritev64);
    if (is_file(fd) && strikes()) { (void)!real(fd, parts, count / 2, at); _exit(137); }
    return real(fd, parts, count, at);
}
ssize_t copy_file_range(int in, off64_t *in_at, int out, off64_t *out_at, size_t count, unsigned flags) {
    REAL(copy_file_range);
    STRIKE();
    return real(in, in_at, out, out_at, count, flags);
}
int ftruncate64(int fd, off64_t length) { REAL(ftruncate64); STRIKE(); return real(fd, length); }
int fsync(int fd) { REAL(fsync); STRIKE(); return real(fd); }
int fdatasync(int fd) { REAL(fdatasync); STRIKE(); return real(fd); }
int rename(const char *from, const char *to) { REAL(rename); STRIKE(); return real(from, to); }
int renameat2(int a, const char *from, int b, const char *to, unsigned flags) {
    REAL(renameat2);
    STRIKE();
    return real(a, from, b, to, flags);
}
int link(const char *from, const char *to) { REAL(link); STRIKE(); return real(from, to); }
int linkat(int a, const char *from, int b, const char *to, int flags) {
    REAL(linkat);
    STRIKE();
    return real(a, from, b, to, flags);
}
int unlink(const char *path) { REAL(unlink); STRIKE(); return real(path); }
int unlinkat(int dir, const char *path, int flags) { REAL(unlinkat); STRIKE(); return real(dir, path, flags); }
int rmdir(const char *path) { REAL(rmdir); STRIKE(); return real(path); }
int mkdir(const char *path, mode_t mode) { REAL(mkdir); STRIKE(); return real(path, mode); }
