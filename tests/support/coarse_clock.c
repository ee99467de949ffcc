/* Clocks that move only every 4 ms, as a kernel without finer timers has them, for whatever process loads this first. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <sys/time.h>
#include <time.h>

#define STEP_NS 4000000L

int clock_gettime(clockid_t clock, struct timespec *found) {
  static int (*of_the_system)(clockid_t, struct timespec *);
  if (!of_the_system) of_the_system = dlsym(RTLD_NEXT, "clock_gettime");
  int result = of_the_system(clock, found);
  if (!result) found->tv_nsec -= found->tv_nsec % STEP_NS;
  return result;
}

int gettimeofday(struct timeval *found, void *zone) {
  struct timespec now;
  int result = clock_gettime(CLOCK_REALTIME, &now);
  found->tv_sec = now.tv_sec;
  found->tv_usec = now.tv_nsec / 1000;
  return result;
}
