/* A stand-in for libnvidia-ml.so.1 with two GPUs whose every figure is known, so that what reads NVML is tested without one.

   Time t counts from STANDIN_T0 (seconds of the wall clock). GPU 0: power 300 + 100 sin(2 pi t / 10) W, energy its exact
   integral. GPU 1: 200 W; its clocks drop to 1200 MHz with the reason "power cap" (0x4) for 5 s of every 20; it has no
   memory clock and no activity counters; from STANDIN_LOST_FROM to STANDIN_LOST_TO it has fallen off the bus, and its
   old handle with it. Until STANDIN_ODD_UNTIL the temperature of GPU 0 is an unknown error, and
   how busy its memory is NaN with a code that says all is well. With STANDIN_MIG GPU 0 is divided,
   into one device of 9 GiB whose utilisation nobody knows. The host's processes on GPU 0 are listed in STANDIN_PID (1 GiB) and 1 (2 GiB). */

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { OK = 0, UNINITIALIZED = 1, INVALID = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, TOO_SMALL = 7, LOST = 15, UNKNOWN = 999 };
enum { GPUS = 2, PART = 10, INSTANT_POWER = 186, METRICS = 98 };
static const double PI = 3.14159265358979323846;

typedef struct { int index; unsigned generation; } gpu_t;
static gpu_t gpus[64];
static int used, up;

static double number(const char *name, double otherwise) {
  const char *text = getenv(name);
  return text ? atof(text) : otherwise;
}

static double now(void) {
  struct timespec at;
  clock_gettime(CLOCK_REALTIME, &at);
  return (double)(at.tv_sec - (time_t)number("STANDIN_T0", 0)) + at.tv_nsec / 1e9
         - (number("STANDIN_T0", 0) - (double)(time_t)number("STANDIN_T0", 0));
}

static unsigned generation(int index, double t) {
  return index == 1 && t >= number("STANDIN_LOST_TO", 1e18) ? 1 : 0;
}

static int state(const gpu_t *gpu) {
  double t = now();
  if (!up) return UNINITIALIZED;
  if (gpu->index == 1 && t >= number("STANDIN_LOST_FROM", 1e18) && t < number("STANDIN_LOST_TO", 1e18)) return LOST;
  return gpu->generation == generation(gpu->index, t) ? OK : LOST; /* a handle from before the loss stays dead */
}

static double watts(int index, double t) { return index ? 200 : 300 + 100 * sin(2 * PI * t / 10); }
static double joules(int index, double t) {
  return index ? 200 * t : 300 * t + 100 * 10 / (2 * PI) * (1 - cos(2 * PI * t / 10));
}
static int throttled(int index, double t) { return index == 1 && fmod(t, 20) >= 10 && fmod(t, 20) < 15; }

#define READ(gpu) { int s = state(gpu); if (s) return s; }

int nvmlInitWithFlags(unsigned flags) { (void)flags; up = 1; return OK; }
int nvmlInit_v2(void) { up = 1; return OK; }
int nvmlShutdown(void) { up = 0; return OK; }
const char *nvmlErrorString(int code) { return code == LOST ? "GPU is lost" : code == NOT_SUPPORTED ? "Not Supported" : code == UNKNOWN ? "Unknown Error" : "Error"; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = GPUS; return up ? OK : UNINITIALIZED; }

static int handle(int index, gpu_t **gpu) {
  double t = now();
  if (!up) return UNINITIALIZED;
  if (index >= GPUS) return INVALID;
  if (index == 1 && t >= number("STANDIN_LOST_FROM", 1e18) && t < number("STANDIN_LOST_TO", 1e18)) return LOST;
  *gpu = &gpus[used++ % 64];
  (*gpu)->index = index;
  (*gpu)->generation = generation(index, t);
  return OK;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned index, gpu_t **gpu) { return handle((int)index, gpu); }
static gpu_t part = {PART, 0};
int nvmlDeviceGetHandleByUUID(const char *uuid, gpu_t **gpu) { return handle(uuid[strlen(uuid) - 1] - '0', gpu); }
int nvmlDeviceGetMaxMigDeviceCount(gpu_t *gpu, unsigned *count) { READ(gpu) *count = 7; return OK; }
int nvmlDeviceGetMigDeviceHandleByIndex(gpu_t *gpu, unsigned place, gpu_t **found) {
  READ(gpu)
  *found = &part;
  return place == 2 ? OK : NOT_FOUND;
}
int nvmlDeviceGetUUID(gpu_t *gpu, char *uuid, unsigned size) {
  READ(gpu)
  snprintf(uuid, size, gpu == &part ? "MIG-00000000-0000-0000-0000-0000000000%02d" : "GPU-00000000-0000-0000-0000-00000000000%d", gpu->index);
  return OK;
}
int nvmlDeviceGetName(gpu_t *gpu, char *name, unsigned size) { READ(gpu) snprintf(name, size, "Stand-in"); return OK; }
int nvmlDeviceGetUtilizationRates(gpu_t *gpu, unsigned *rates) {
  READ(gpu)
  if (gpu == &part) return NOT_SUPPORTED;
  rates[0] = gpu->index ? 50 : 80;
  rates[1] = 20;
  return OK;
}
int nvmlDeviceGetMemoryInfo(gpu_t *gpu, unsigned long long *memory) {
  READ(gpu)
  memory[0] = 80ull << 30; memory[2] = (unsigned long long)(gpu == &part ? 9 : 10 + gpu->index) << 30; memory[1] = memory[0] - memory[2];
  return OK;
}
int nvmlDeviceGetPowerUsage(gpu_t *gpu, unsigned *milliwatts) { /* the average that boards show: behind by a second */
  READ(gpu)
  *milliwatts = (unsigned)(1e3 * watts(gpu->index, now() - 1));
  return OK;
}
int nvmlDeviceGetTotalEnergyConsumption(gpu_t *gpu, unsigned long long *millijoules) {
  READ(gpu)
  *millijoules = (unsigned long long)(1e3 * joules(gpu->index, now()));
  return OK;
}
int nvmlDeviceGetTemperature(gpu_t *gpu, int sensor, unsigned *celsius) {
  (void)sensor;
  READ(gpu)
  if (gpu->index == 0 && now() < number("STANDIN_ODD_UNTIL", 0)) return UNKNOWN;
  *celsius = 60 + gpu->index;
  return OK;
}
int nvmlDeviceGetClockInfo(gpu_t *gpu, int kind, unsigned *mhz) {
  READ(gpu)
  if (kind == 2 && gpu->index == 1) return NOT_SUPPORTED;
  *mhz = kind == 2 ? 2600 : throttled(gpu->index, now()) ? 1200 : 1800;
  return OK;
}
int nvmlDeviceGetCurrentClocksThrottleReasons(gpu_t *gpu, unsigned long long *reasons) {
  READ(gpu)
  *reasons = throttled(gpu->index, now()) ? 0x4 : 0;
  return OK;
}

typedef struct { double d; } value_t;
typedef struct { uint32_t id, scope; int64_t at, took; int type, code; union { double d; unsigned u; } value; } field_t;
int nvmlDeviceGetFieldValues(gpu_t *gpu, int count, field_t *fields) {
  READ(gpu)
  for (int k = 0; k < count; k++) {
    fields[k].code = fields[k].id == INSTANT_POWER ? OK : NOT_SUPPORTED;
    fields[k].type = 1;
    fields[k].value.u = (unsigned)(1e3 * watts(gpu->index, now()));
  }
  return OK;
}

typedef struct { unsigned long long at; union { double d; unsigned u; } value; } sample_t;
int nvmlDeviceGetSamples(gpu_t *gpu, int kind, unsigned long long after, int *type, unsigned *count, sample_t *samples) {
  /* utilisation every 20 ms, alternately 20 points above and below what a poll shows */
  unsigned long long every = 20000, last = (unsigned long long)(1e6 * now()) / every, first = after / every + 1;
  READ(gpu)
  if (kind != 1 || gpu->index) return NOT_SUPPORTED;
  if (first + 100 < last) first = last - 100;
  if (first > last) return NOT_FOUND;
  if (samples)
    for (unsigned long long k = first; k <= last && k - first < *count; k++) {
      samples[k - first].at = k * every;
      samples[k - first].value.u = k % 2 ? 60 : 100;
    }
  *type = 1;
  *count = (unsigned)(last - first + 1);
  return OK;
}

typedef struct { unsigned pid; unsigned long long memory; unsigned gi, ci; } process_t;
int nvmlDeviceGetComputeRunningProcesses_v3(gpu_t *gpu, unsigned *count, process_t *processes) {
  READ(gpu)
  if (gpu->index) { *count = 0; return OK; }
  if (*count < 2) { *count = 2; return TOO_SMALL; }
  *count = 2;
  processes[0] = (process_t){(unsigned)number("STANDIN_PID", 0), 1ull << 30, 0, 0};
  processes[1] = (process_t){1, 2ull << 30, 0, 0};
  return OK;
}
int nvmlDeviceGetComputeRunningProcesses_v2(gpu_t *gpu, unsigned *count, process_t *processes) {
  return nvmlDeviceGetComputeRunningProcesses_v3(gpu, count, processes);
}
int nvmlDeviceGetMigMode(gpu_t *gpu, unsigned *current, unsigned *pending) {
  READ(gpu)
  *current = *pending = 1;
  return gpu->index == 0 && getenv("STANDIN_MIG") ? OK : NOT_SUPPORTED;
}

typedef struct { unsigned version, supported; } support_t;
typedef struct { unsigned id; int code; double value; const char *text[3]; } metric_t;
typedef struct { unsigned version, count; double *one, *other; metric_t metrics[METRICS]; } metrics_t;
int nvmlGpmQueryDeviceSupport(gpu_t *gpu, support_t *support) { READ(gpu) support->supported = gpu->index == 0; return OK; }
int nvmlGpmSampleAlloc(double **sample) { *sample = calloc(1, sizeof(double)); return OK; }
int nvmlGpmSampleFree(double *sample) { free(sample); return OK; }
int nvmlGpmSampleGet(gpu_t *gpu, double *sample) { READ(gpu) *sample = now(); return OK; }
int nvmlGpmMetricsGet(metrics_t *found) { /* SM 40, tensor 30, DRAM 20 %, where the samples are in order */
  for (unsigned k = 0; k < found->count; k++) {
    unsigned id = found->metrics[k].id;
    found->metrics[k].code = *found->other > *found->one ? OK : INVALID;
    found->metrics[k].value = id == 2 ? 40 : id == 5 ? 30 : now() < number("STANDIN_ODD_UNTIL", 0) ? NAN : 20;
  }
  return OK;
}
