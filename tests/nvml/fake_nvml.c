/* A libnvidia-ml.so.1 without a GPU: the entry points that nvidia-ml-py 13 calls, with the C ABI of NVIDIA's nvml.h.
 *
 * The story is told by environment variables; a list has one item a card, and its last item counts for the rest.
 *   FAKE_CARDS       number of cards, at most 8 (1)         FAKE_NAMES   names
 *   FAKE_BUSES       PCI bus numbers, hexadecimal           FAKE_MIG     MIG slices of a card, -1 for MIG off
 *   FAKE_UTIL        per cent                               FAKE_USED_MB FAKE_TOTAL_MB FAKE_RESERVED_MB   memory
 *   FAKE_POWER_MW    FAKE_LIMIT_MW                          FAKE_CLOCK   FAKE_MAX_CLOCK   MHz
 *   FAKE_REASONS     what holds clocks down, bits           FAKE_PIDS    processes of a card: 7+self, or none
 *   FAKE_ENERGY_MJ   the counter at first                   FAKE_ENERGY_STEP_MJ   what each reading adds
 *   FAKE_ENERGY_RESET_AT   the reading, from 0, at which the counter begins anew
 *   FAKE_CORES       CUDA cores                             FAKE_CAPABILITY  such as 9.0
 *   FAKE_SLICE_SMS   multiprocessors of a slice             FAKE_SLICE_NAME  what a slice's name adds to its card's
 *   FAKE_FAIL        function[#card]=code[@first[-last]];...   which calls, from 0 for each card, fail with what
 * Compiled with -DFAKE_OLD it lacks the symbols that old drivers lack; with -DFAKE_ANCIENT also the one to begin with.
 * fake_calls() and fake_users() tell a test what was asked, and how many have begun and not ended.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { CARDS = 8, SLICES = 7, FUNCTIONS = 64 };
enum { OK = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7 };

typedef struct { int card, slice; } Device; /* slice -1: the card itself */
typedef struct { unsigned long long total, free, used; } Memory;
typedef struct { unsigned version; unsigned long long total, reserved, free, used; } MemoryV2;
typedef struct { unsigned gpu, memory; } Utilization;
typedef struct {
    unsigned multiprocessors, copy_engines, decoders, encoders, jpegs, ofas, gpu_instance_slices, compute_instance_slices;
    unsigned long long memory_mb;
} Attributes;
typedef struct { unsigned pid; unsigned long long memory; unsigned gpu_instance, compute_instance; } Process;
typedef struct {
    char legacy[16];
    unsigned domain, bus, device, device_id, subsystem_id;
    char id[32];
} Pci;

static Device cards[CARDS], slices[CARDS][SLICES];
static int users;
static struct { const char *name; int calls[CARDS]; } functions[FUNCTIONS];

/* The item of a card in a list, "" if the variable is not set. */
static const char *item(const char *variable, char separator, int card)
{
    static _Thread_local char text[256];
    const char *at = getenv(variable), *end;
    if (at == NULL) return "";
    for (; card > 0 && (end = strchr(at, separator)) != NULL; card--) at = end + 1;
    end = strchr(at, separator);
    snprintf(text, sizeof text, "%.*s", end ? (int)(end - at) : 255, at);
    return text;
}

static long number(const char *variable, int card, long otherwise)
{
    const char *text = item(variable, ',', card);
    return *text ? strtol(text, NULL, 0) : otherwise;
}

static int *calls_of(const char *name, int card)
{
    for (int at = 0; at < FUNCTIONS; at++) {
        if (functions[at].name == NULL) functions[at].name = strdup(name);
        if (strcmp(functions[at].name, name) == 0) return &functions[at].calls[card];
    }
    abort();
}

int fake_calls(const char *name, int card) { return *calls_of(name, card); }
int fake_users(void) { return users; }

/* What the story has the nth call of a function on a card fail with. */
static int failure(const char *name, int card, int nth)
{
    const char *rule = getenv("FAKE_FAIL");
    size_t length = strlen(name);
    for (; rule != NULL && *rule; rule = strchr(rule, ';') ? strchr(rule, ';') + 1 : NULL) {
        char *at;
        long code, first = 0, last = 1L << 30;
        if (strncmp(rule, name, length) != 0 || (rule[length] != '#' && rule[length] != '=')) continue;
        at = (char *)rule + length;
        if (*at == '#' && strtol(at + 1, &at, 10) != card) continue;
        code = strtol(at + 1, &at, 10);
        if (*at == '@') first = strtol(at + 1, &at, 10);
        if (*at == '-') last = strtol(at + 1, &at, 10);
        if (first <= nth && nth <= last) return (int)code;
    }
    return OK;
}

static int enter(const char *name, int card)
{
    int *calls = calls_of(name, card);
    return users > 0 ? failure(name, card, (*calls)++) : UNINITIALIZED;
}

#define ENTER(card)                               \
    do {                                          \
        int code = enter(__func__, card);         \
        if (code != OK) return code;              \
    } while (0)
#define NOT_FOR_SLICES(device, code) \
    do {                             \
        if ((device)->slice >= 0) return code; \
    } while (0)

#ifndef FAKE_ANCIENT
int nvmlInitWithFlags(unsigned flags)
{
    int *calls = calls_of(__func__, 0), code = failure(__func__, 0, (*calls)++);
    (void)flags;
    for (int card = 0; card < CARDS; card++) {
        cards[card] = (Device){card, -1};
        for (int slice = 0; slice < SLICES; slice++) slices[card][slice] = (Device){card, slice};
    }
    users += code == OK;
    return code;
}
#endif

int nvmlShutdown(void)
{
    if (users == 0) return UNINITIALIZED;
    users--;
    return OK;
}

/* Without it nvidia-ml-py cannot even name an error code that it does not know. */
const char *nvmlErrorString(int code) { return code == OK ? "The operation was successful" : "Some error"; }

int nvmlDeviceGetCount_v2(unsigned *count)
{
    ENTER(0);
    *count = (unsigned)number("FAKE_CARDS", 0, 1);
    return OK;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, Device **device)
{
    if (index >= CARDS) return INVALID_ARGUMENT;
    ENTER((int)index);
    *device = &cards[index];
    return OK;
}

int nvmlDeviceGetUUID(Device *device, char *uuid, unsigned length)
{
    ENTER(device->card);
    if (device->slice < 0)
        snprintf(uuid, length, "GPU-%d0000000-0000-0000-0000-00000000000%d", device->card, device->card);
    else
        snprintf(uuid, length, "MIG-%d%d000000-0000-0000-0000-000000000000", device->card, device->slice);
    return OK;
}

int nvmlDeviceGetName(Device *device, char *name, unsigned length)
{
    ENTER(device->card);
    const char *given = item("FAKE_NAMES", ',', device->card);
    int written = snprintf(name, length, "%s", *given ? given : "NVIDIA H100 80GB HBM3");
    if (device->slice >= 0) {
        const char *adds = getenv("FAKE_SLICE_NAME");
        snprintf(name + written, length - (unsigned)written, "%s", adds ? adds : " MIG 1g.10gb");
    }
    return OK;
}

int nvmlSystemGetDriverVersion(char *version, unsigned length)
{
    ENTER(0);
    snprintf(version, length, "580.65.06");
    return OK;
}

#ifndef FAKE_OLD
int nvmlSystemGetCudaDriverVersion_v2(int *version)
{
    ENTER(0);
    *version = 13000;
    return OK;
}

int nvmlDeviceGetNumGpuCores(Device *device, unsigned *cores)
{
    ENTER(device->card);
    *cores = (unsigned)number("FAKE_CORES", device->card, 16896);
    return OK;
}

int nvmlDeviceGetAttributes_v2(Device *device, Attributes *attributes)
{
    ENTER(device->card);
    if (device->slice < 0) return NOT_SUPPORTED;
    memset(attributes, 0, sizeof *attributes);
    attributes->multiprocessors = (unsigned)number("FAKE_SLICE_SMS", device->card, 16);
    attributes->gpu_instance_slices = attributes->compute_instance_slices = 1;
    attributes->memory_mb = 9856;
    return OK;
}
#endif

int nvmlDeviceGetCudaComputeCapability(Device *device, int *major, int *minor)
{
    ENTER(device->card);
    const char *given = item("FAKE_CAPABILITY", ',', device->card);
    if (sscanf(*given ? given : "9.0", "%d.%d", major, minor) != 2) return NOT_SUPPORTED;
    return OK;
}

int nvmlDeviceGetPciInfo_v3(Device *device, Pci *pci)
{
    ENTER(device->card);
    memset(pci, 0, sizeof *pci);
    const char *given = item("FAKE_BUSES", ',', device->card);
    pci->bus = *given ? (unsigned)strtol(given, NULL, 16) : 16u + (unsigned)device->card;
    snprintf(pci->legacy, sizeof pci->legacy, "%04X:%02X:00.0", 0, pci->bus);
    snprintf(pci->id, sizeof pci->id, "%08X:%02X:00.0", 0, pci->bus);
    return OK;
}

int nvmlDeviceGetMigMode(Device *device, unsigned *current, unsigned *pending)
{
    ENTER(device->card);
    if (getenv("FAKE_MIG") == NULL) return NOT_SUPPORTED;
    *current = *pending = number("FAKE_MIG", device->card, -1) >= 0;
    return OK;
}

int nvmlDeviceGetMaxMigDeviceCount(Device *device, unsigned *count)
{
    ENTER(device->card);
    *count = SLICES;
    return OK;
}

int nvmlDeviceGetMigDeviceHandleByIndex(Device *device, unsigned index, Device **slice)
{
    ENTER(device->card);
    if ((long)index >= number("FAKE_MIG", device->card, -1)) return NOT_FOUND;
    *slice = &slices[device->card][index];
    return OK;
}

int nvmlDeviceGetUtilizationRates(Device *device, Utilization *utilization)
{
    ENTER(device->card);
    NOT_FOR_SLICES(device, NOT_SUPPORTED);
    utilization->gpu = (unsigned)number("FAKE_UTIL", device->card, 90);
    utilization->memory = 0;
    return OK;
}

static const unsigned long long MB = 1000000;

int nvmlDeviceGetMemoryInfo(Device *device, Memory *memory)
{
    ENTER(device->card);
    memory->total = number("FAKE_TOTAL_MB", device->card, 80000) * MB;
    memory->used = (number("FAKE_USED_MB", device->card, 40000) + number("FAKE_RESERVED_MB", device->card, 500)) * MB;
    memory->free = memory->total - memory->used;
    return OK;
}

#ifndef FAKE_OLD
int nvmlDeviceGetMemoryInfo_v2(Device *device, MemoryV2 *memory)
{
    ENTER(device->card);
    if (memory->version != (sizeof *memory | 2u << 24)) return 25;
    memory->total = number("FAKE_TOTAL_MB", device->card, 80000) * MB;
    memory->reserved = number("FAKE_RESERVED_MB", device->card, 500) * MB;
    memory->used = number("FAKE_USED_MB", device->card, 40000) * MB;
    memory->free = memory->total - memory->reserved - memory->used;
    return OK;
}
#endif

int nvmlDeviceGetPowerUsage(Device *device, unsigned *milliwatts)
{
    ENTER(device->card);
    NOT_FOR_SLICES(device, NOT_SUPPORTED);
    *milliwatts = (unsigned)number("FAKE_POWER_MW", device->card, 600000);
    return OK;
}

int nvmlDeviceGetEnforcedPowerLimit(Device *device, unsigned *milliwatts)
{
    ENTER(device->card);
    NOT_FOR_SLICES(device, NOT_SUPPORTED);
    *milliwatts = (unsigned)number("FAKE_LIMIT_MW", device->card, 700000);
    return OK;
}

#ifndef FAKE_OLD
int nvmlDeviceGetTotalEnergyConsumption(Device *device, unsigned long long *millijoules)
{
    ENTER(device->card);
    NOT_FOR_SLICES(device, INVALID_ARGUMENT);
    long nth = *calls_of(__func__, device->card) - 1, reset = number("FAKE_ENERGY_RESET_AT", device->card, -1);
    long start = number("FAKE_ENERGY_MJ", device->card, 5000000);
    if (reset >= 0 && nth >= reset) start = 0, nth -= reset;
    *millijoules = (unsigned long long)(start + nth * number("FAKE_ENERGY_STEP_MJ", device->card, 600000));
    return OK;
}
#endif

int nvmlDeviceGetClockInfo(Device *device, int type, unsigned *mhz)
{
    ENTER(device->card);
    NOT_FOR_SLICES(device, NOT_SUPPORTED);
    *mhz = type == 1 ? (unsigned)number("FAKE_CLOCK", device->card, 1980) : 0;
    return OK;
}

int nvmlDeviceGetMaxClockInfo(Device *device, int type, unsigned *mhz)
{
    ENTER(device->card);
    NOT_FOR_SLICES(device, NOT_SUPPORTED);
    *mhz = type == 1 ? (unsigned)number("FAKE_MAX_CLOCK", device->card, 1980) : 0;
    return OK;
}

#ifndef FAKE_OLD
int nvmlDeviceGetCurrentClocksEventReasons(Device *device, unsigned long long *bits)
{
    ENTER(device->card);
    NOT_FOR_SLICES(device, NOT_SUPPORTED);
    *bits = (unsigned long long)number("FAKE_REASONS", device->card, 0);
    return OK;
}
#endif

int nvmlDeviceGetCurrentClocksThrottleReasons(Device *device, unsigned long long *bits)
{
    ENTER(device->card);
    NOT_FOR_SLICES(device, NOT_SUPPORTED);
    *bits = (unsigned long long)number("FAKE_REASONS", device->card, 0);
    return OK;
}

static int processes_of(Device *device, unsigned *count, Process *processes)
{
    const char *at = item("FAKE_PIDS", ',', device->card);
    unsigned found = 0, room = processes ? *count : 0;
    while (*at && strcmp(at, "none") != 0) {
        const char *end = strchr(at, '+');
        unsigned pid = strncmp(at, "self", 4) == 0 ? (unsigned)getpid() : (unsigned)strtol(at, NULL, 10);
        if (found < room) processes[found] = (Process){pid, 1000 * MB, ~0u, ~0u};
        found++;
        at = end ? end + 1 : "";
    }
    *count = found;
    return found > room ? INSUFFICIENT_SIZE : OK;
}

#ifndef FAKE_OLD
int nvmlDeviceGetComputeRunningProcesses_v3(Device *device, unsigned *count, Process *processes)
{
    ENTER(device->card);
    return processes_of(device, count, processes);
}
#endif

int nvmlDeviceGetComputeRunningProcesses_v2(Device *device, unsigned *count, Process *processes)
{
    ENTER(device->card);
    return processes_of(device, count, processes);
}
