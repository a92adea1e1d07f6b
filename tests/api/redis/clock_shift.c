/* Shifts the wall clock of a process by as many seconds as the file says that CLOCK_SHIFT names: eight bytes, which may change
 * at any time. Loaded by LD_PRELOAD. libfaketime cannot do this for a Redis that uses jemalloc. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>

static volatile const int64_t *shift;

__attribute__((constructor)) static void open_file(void) {
    const char *name = getenv("CLOCK_SHIFT");
    int file = name ? open(name, O_RDONLY) : -1;
    void *page = file < 0 ? MAP_FAILED : mmap(NULL, sizeof *shift, PROT_READ, MAP_SHARED, file, 0);
    if (page == MAP_FAILED) abort();
    shift = page;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    struct timespec true_now;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &true_now);
    now->tv_sec = true_now.tv_sec + (shift ? *shift : 0);
    now->tv_usec = true_now.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *at) {
    struct timeval now;
    gettimeofday(&now, NULL);
    if (at) *at = now.tv_sec;
    return now.tv_sec;
}
