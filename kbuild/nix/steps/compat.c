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
int __xstat(int, const char*, void*);
int __lxstat(int, const char*, void*);
int __fxstat(int, int, void*);
int __fxstatat(int, int, const char*, void*, int);
int stat(const char* path, void* out) { return __xstat(1, path, out); }
int lstat(const char* path, void* out) { return __lxstat(1, path, out); }
int fstat(int fd, void* out) { return __fxstat(1, fd, out); }
int fstatat(int fd, const char* path, void* out, int flags) { return __fxstatat(1, fd, path, out, flags); }

// Since glibc 2.38 C23 headers redirect the strto* family here; only the reading of 0b prefixes differs.
long strtol(const char*, char**, int);
long long strtoll(const char*, char**, int);
unsigned long strtoul(const char*, char**, int);
unsigned long long strtoull(const char*, char**, int);
long __isoc23_strtol(const char* s, char** end, int base) { return strtol(s, end, base); }
long long __isoc23_strtoll(const char* s, char** end, int base) { return strtoll(s, end, base); }
unsigned long __isoc23_strtoul(const char* s, char** end, int base) { return strtoul(s, end, base); }
unsigned long long __isoc23_strtoull(const char* s, char** end, int base) { return strtoull(s, end, base); }
int vsscanf(const char*, const char*, __builtin_va_list);
int __isoc23_sscanf(const char* s, const char* format, ...) {
  __builtin_va_list arguments;
  __builtin_va_start(arguments, format);
  int read = vsscanf(s, format, arguments);
  __builtin_va_end(arguments);
  return read;
}
