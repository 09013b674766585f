// Linked statically into kernels: names that headers newer than glibc 2.28 call, on top of what 2.28 has.
// Prototypes are written out because those headers would redirect them to the very names defined here.

typedef unsigned long size_t;

// In glibc this one is in libc_nonshared.a: each library registers with its own handle.
extern char __dso_handle __attribute__((visibility("hidden")));
int __cxa_atexit(void (*)(void*), void*, void*);
int atexit(void (*function)(void)) { return __cxa_atexit((void (*)(void*))function, 0, &__dso_handle); }

// Since glibc 2.32 libstdc++'s shared_ptr reads this to skip atomics; 0 means "assume threads".
char __libc_single_threaded = 0;

// Since glibc 2.33 these are functions of their own; before, they were wrappers with a version number (1 on x86_64).
// The names with 64 are what -D_FILE_OFFSET_BITS=64 calls.
int __xstat(int, const char*, void*);
int __lxstat(int, const char*, void*);
int __fxstat(int, int, void*);
int __fxstatat(int, int, const char*, void*, int);
int stat(const char* path, void* out) { return __xstat(1, path, out); }
int lstat(const char* path, void* out) { return __lxstat(1, path, out); }
int fstat(int fd, void* out) { return __fxstat(1, fd, out); }
int fstatat(int fd, const char* path, void* out, int flags) { return __fxstatat(1, fd, path, out, flags); }
int stat64(const char* path, void* out) { return __xstat(1, path, out); }
int lstat64(const char* path, void* out) { return __lxstat(1, path, out); }
int fstat64(int fd, void* out) { return __fxstat(1, fd, out); }
int fstatat64(int fd, const char* path, void* out, int flags) { return __fxstatat(1, fd, path, out, flags); }

// Since glibc 2.30 libstdc++ waits for a time of the steady clock with these. Before, it waited for the wall clock's
// corresponding time, and its callers still look at their own clock afterwards: that is done here.
struct timespec {
  long seconds, nanoseconds;
};
int clock_gettime(int, struct timespec*);
int pthread_cond_timedwait(void*, void*, const struct timespec*);
int pthread_mutex_timedlock(void*, const struct timespec*);
int pthread_rwlock_timedrdlock(void*, const struct timespec*);
int pthread_rwlock_timedwrlock(void*, const struct timespec*);
static struct timespec on_wall_clock(int clock, const struct timespec* time) {
  struct timespec now, wall;
  clock_gettime(clock, &now);
  clock_gettime(0, &wall);
  wall.seconds += time->seconds - now.seconds;
  wall.nanoseconds += time->nanoseconds - now.nanoseconds;
  long carry = wall.nanoseconds < 0 ? -1 : wall.nanoseconds >= 1000000000;
  wall.seconds += carry;
  wall.nanoseconds -= carry * 1000000000;
  return wall;
}
int pthread_cond_clockwait(void* condition, void* mutex, int clock, const struct timespec* time) {
  struct timespec wall = on_wall_clock(clock, time);
  return pthread_cond_timedwait(condition, mutex, &wall);
}
int pthread_mutex_clocklock(void* mutex, int clock, const struct timespec* time) {
  struct timespec wall = on_wall_clock(clock, time);
  return pthread_mutex_timedlock(mutex, &wall);
}
int pthread_rwlock_clockrdlock(void* lock, int clock, const struct timespec* time) {
  struct timespec wall = on_wall_clock(clock, time);
  return pthread_rwlock_timedrdlock(lock, &wall);
}
int pthread_rwlock_clockwrlock(void* lock, int clock, const struct timespec* time) {
  struct timespec wall = on_wall_clock(clock, time);
  return pthread_rwlock_timedwrlock(lock, &wall);
}

// Since glibc 2.38 C23 headers redirect the strto* and scanf families here; only the reading of 0b prefixes differs.
#define READS(type, name, character)                                    \
  type name(const character*, character**, int);                        \
  type __isoc23_##name(const character* s, character** end, int base) { \
    return name(s, end, base);                                          \
  }
READS(long, strtol, char)
READS(long long, strtoll, char)
READS(unsigned long, strtoul, char)
READS(unsigned long long, strtoull, char)
READS(long, strtoimax, char)
READS(unsigned long, strtoumax, char)
READS(long, wcstol, __WCHAR_TYPE__)
READS(long long, wcstoll, __WCHAR_TYPE__)
READS(unsigned long, wcstoul, __WCHAR_TYPE__)
READS(unsigned long long, wcstoull, __WCHAR_TYPE__)

int vsscanf(const char*, const char*, __builtin_va_list);
int vfscanf(void*, const char*, __builtin_va_list);
int __isoc23_vsscanf(const char* s, const char* format, __builtin_va_list arguments) {
  return vsscanf(s, format, arguments);
}
int __isoc23_vfscanf(void* file, const char* format, __builtin_va_list arguments) {
  return vfscanf(file, format, arguments);
}
int __isoc23_sscanf(const char* s, const char* format, ...) {
  __builtin_va_list arguments;
  __builtin_va_start(arguments, format);
  int read = vsscanf(s, format, arguments);
  __builtin_va_end(arguments);
  return read;
}
int __isoc23_fscanf(void* file, const char* format, ...) {
  __builtin_va_list arguments;
  __builtin_va_start(arguments, format);
  int read = vfscanf(file, format, arguments);
  __builtin_va_end(arguments);
  return read;
}
