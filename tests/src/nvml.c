/* A library of NVML with three GPUs, for machines without one. The folder $FAKE_NVML holds what they show: `ecc-N` a count of uncorrectable
   errors, `lost-N` and `pending-N` exist or do not. Numbers and layouts are those of NVML's interface. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { GPUS = 3, SUCCESS = 0, NOT_SUPPORTED = 3, NOT_FOUND = 6, LOST = 15 };

typedef struct {
    unsigned field, scope;
    long long time, latency;
    unsigned type, result;
    union { double number; unsigned count; unsigned long long wide; } value;
} Field;

static const int INDICES[GPUS] = {0, 1, 2};

static char *file(const char *what, int index, char *path) {
    snprintf(path, 4096, "%s/%s-%d", getenv("FAKE_NVML"), what, index);
    return path;
}

static int is_there(const char *what, int index) {
    char path[4096];
    return access(file(what, index, path), F_OK) == 0;
}

static int gpu(const void *device) { return *(const int *)device; }

int nvmlInit_v2(void) { return SUCCESS; }
int nvmlShutdown(void) { return SUCCESS; }
int nvmlSystemGetDriverVersion(char *text, unsigned size) { return snprintf(text, size, "570.1"), SUCCESS; }
int nvmlDeviceGetCount_v2(unsigned *count) { return *count = GPUS, SUCCESS; }

int nvmlDeviceGetHandleByIndex_v2(unsigned index, const void **device) {
    if (index >= GPUS) return NOT_FOUND;
    *device = &INDICES[index];
    return SUCCESS;
}

int nvmlDeviceGetHandleByUUID(const char *uuid, const void **device) {
    int index = -1;
    if (sscanf(uuid, "GPU-fake-%d", &index) != 1 || index < 0 || index >= GPUS) return NOT_FOUND;
    *device = &INDICES[index];
    return is_there("lost", index) ? LOST : SUCCESS;
}

int nvmlDeviceGetUUID(const void *device, char *text, unsigned size) {
    return snprintf(text, size, "GPU-fake-%d", gpu(device)), SUCCESS;
}

int nvmlDeviceGetName(const void *device, char *text, unsigned size) {
    (void)device;
    return snprintf(text, size, "Fake"), SUCCESS;
}

int nvmlDeviceGetMigMode(const void *device, unsigned *now, unsigned *later) {
    (void)device, (void)now, (void)later;
    return NOT_SUPPORTED;
}

int nvmlDeviceGetTotalEccErrors(const void *device, unsigned kind, unsigned counter, unsigned long long *count) {
    char path[4096];
    /* Uncorrected, volatile. */
    if (kind != 1 || counter != 0) return NOT_SUPPORTED;
    FILE *found = fopen(file("ecc", gpu(device), path), "r");
    if (!found) return *count = 0, SUCCESS;
    int read = fscanf(found, "%llu", count);
    fclose(found);
    return read == 1 ? SUCCESS : NOT_SUPPORTED;
}

int nvmlDeviceGetFieldValues(const void *device, int count, Field *fields) {
    for (int at = 0; at < count; at++) {
        fields[at].result = SUCCESS;
        fields[at].type = 1;
        fields[at].value.count = fields[at].field == 144 && is_there("pending", gpu(device));
    }
    return SUCCESS;
}
