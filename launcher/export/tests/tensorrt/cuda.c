// Stands in for the NVIDIA driver: device memory is the host's, and what is not freed makes the next allocation fail.

#include <stdlib.h>
#include <string.h>

typedef unsigned long long address;

static int held;

int cuInit(unsigned flags) { return getenv("FAKE_CUDA_ERROR") ? 100 : 0; }
int cuDeviceGet(int *device, int at) { return *device = at; }
int cuDevicePrimaryCtxRetain(void **context, int device) { return *context = &held, device; }
int cuCtxSetCurrent(void *context) { return context == &held ? 0 : 201; }
int cuDeviceGetName(char *name, int size, int device) { return strncpy(name, "Fake GPU", size), device; }
int cuDeviceGetAttribute(int *value, int attribute, int device) { return *value = attribute == 75 ? 9 : 0, device; }
int cuMemAlloc_v2(address *at, size_t size) { return held == 3 ? 2 : (held++, *at = (address)malloc(size), 0); }
int cuMemFree_v2(address at) { return held--, free((void *)at), 0; }
int cuMemcpyHtoD_v2(address to, const void *from, size_t size) { return memcpy((void *)to, from, size), 0; }
int cuMemcpyDtoH_v2(void *to, address from, size_t size) { return memcpy(to, (void *)from, size), 0; }
int cuStreamCreate(void **stream, unsigned flags) { return *stream = malloc(1), 0; }
int cuStreamSynchronize(void *stream) { return stream ? 0 : 400; }
