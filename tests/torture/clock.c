/* A wall clock that can be set while a process runs, for LD_PRELOAD.
 *
 * The file that WEIR_CLOCK names holds 8 bytes: by how many nanoseconds this process' wall clock is off. The monotonic
 * clock is left alone, as it is when a real wall clock jumps. Waits until an instant of the wall clock are asked of a
 * kernel whose clock has not jumped, so the shift is taken off again.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <threads.h>
#include <time.h>
#include <unistd.h>

static const volatile long long *shift_ns;
static int (*real_clock_gettime)(clockid_t, struct timespec *);

__attribute__((constructor)) static void begin(void)
{
    const char *path = getenv("WEIR_CLOCK");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    real_clock_gettime = dlsym(RTLD_NEXT, "clock_gettime");
    if (file >= 0) {
        void *mapped = mmap(NULL, 8, PROT_READ, MAP_SHARED, file, 0);
        if (mapped != MAP_FAILED)
            shift_ns = mapped;
        close(file);
    }
}

static void move(struct timespec *at, int sign)
{
    long long by = shift_ns ? sign * *shift_ns : 0;
    long long ns = at->tv_nsec + by % 1000000000LL;
    at->tv_sec += by / 1000000000LL + (ns >= 1000000000LL) - (ns < 0);
    at->tv_nsec = ns - 1000000000LL * ((ns >= 1000000000LL) - (ns < 0));
}

int clock_gettime(clockid_t clock, struct timespec *now)
{
    if (!real_clock_gettime)
        real_clock_gettime = dlsym(RTLD_NEXT, "clock_gettime");
    int code = real_clock_gettime(clock, now);
    if (code == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
        move(now, 1);
    return code;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone)
{
    struct timespec at;
    (void)zone;
    int code = clock_gettime(CLOCK_REALTIME, &at);
    now->tv_sec = at.tv_sec;
    now->tv_usec = at.tv_nsec / 1000;
    return code;
}

time_t time(time_t *now)
{
    struct timespec at;
    clock_gettime(CLOCK_REALTIME, &at);
    if (now)
        *now = at.tv_sec;
    return at.tv_sec;
}

int timespec_get(struct timespec *now, int base)
{
    return clock_gettime(CLOCK_REALTIME, now) == 0 ? base : 0;
}

/* A wait by the monotonic clock looks like one by the wall clock, but for its date. */
static struct timespec unmoved(const struct timespec *until)
{
    struct timespec at = *until;
    if (at.tv_sec > 1000000000)
        move(&at, -1);
    return at;
}

int pthread_cond_timedwait(pthread_cond_t *restrict cond, pthread_mutex_t *restrict mutex,
                           const struct timespec *restrict until)
{
    static int (*real)(pthread_cond_t *, pthread_mutex_t *, const struct timespec *);
    struct timespec at = unmoved(until);
    if (!real)
        real = dlvsym(RTLD_NEXT, "pthread_cond_timedwait", "GLIBC_2.3.2");
    if (!real)
        real = dlsym(RTLD_NEXT, "pthread_cond_timedwait");
    return real(cond, mutex, &at);
}

/* What librdkafka waits with. */
int cnd_timedwait(cnd_t *restrict cond, mtx_t *restrict mutex, const struct timespec *restrict until)
{
    static int (*real)(cnd_t *, mtx_t *, const struct timespec *);
    struct timespec at = unmoved(until);
    if (!real)
        real = dlsym(RTLD_NEXT, "cnd_timedwait");
    return real(cond, mutex, &at);
}

int sem_timedwait(sem_t *restrict sem, const struct timespec *restrict until)
{
    static int (*real)(sem_t *, const struct timespec *);
    struct timespec at = unmoved(until);
    if (!real)
        real = dlsym(RTLD_NEXT, "sem_timedwait");
    return real(sem, &at);
}
