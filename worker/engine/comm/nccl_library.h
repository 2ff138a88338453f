#pragma once

#include <cstddef>

#include "common/status.h"

struct ncclComm;
struct CUstream_st;
struct CUevent_st;

namespace weft::engine {

/// The functions of NCCL (2.18 and later) and of the CUDA runtime that groups of CUDA devices need,
/// found at run time: programs start on machines that have neither. Declared here, since their
/// headers need not be there either; nccl_declarations_check.cc holds this to nccl.h where it is.
/// All return 0 when they succeed.
struct NcclLibrary {
  using Comm = ncclComm*;
  using Stream = CUstream_st*;
  using Event = CUevent_st*;

  struct UniqueId {
    char bytes[128];
  };
  /// The first members of ncclConfig_t, as of version 2.14, which later ones understand.
  struct Config {
    size_t size;
    unsigned magic;
    unsigned version;
    int blocking;
  };
  static constexpr Config kNonBlocking = {sizeof(Config), 0xcafebeef, 21400, 0};

  enum Outcome : int { kSuccess = 0, kRemoteError = 6, kInProgress = 7 };
  enum DataType : int {
    kUint8 = 1,
    kInt32 = 2,
    kUint32 = 3,
    kFloat16 = 6,
    kFloat32 = 7,
    kBFloat16 = 9
  };
  enum Operator : int { kSum = 0, kMax = 2 };
  static constexpr int kNoColor = -1;

  int (*get_unique_id)(UniqueId* id);
  int (*comm_init_rank_config)(Comm* comm, int ranks, UniqueId id, int rank, Config* config);
  int (*comm_split)(Comm comm, int color, int key, Comm* child, Config* config);
  int (*comm_get_async_error)(Comm comm, int* error);
  int (*comm_finalize)(Comm comm);
  int (*comm_destroy)(Comm comm);
  int (*comm_abort)(Comm comm);
  const char* (*get_error_string)(int outcome);
  int (*all_reduce)(const void* in, void* out, size_t count, int type, int op, Comm, Stream);
  int (*reduce_scatter)(const void* in, void* out, size_t out_count, int type, int op, Comm,
                        Stream);
  int (*all_gather)(const void* in, void* out, size_t in_count, int type, Comm, Stream);
  int (*broadcast)(const void* in, void* out, size_t count, int type, int root, Comm, Stream);
  int (*send)(const void* in, size_t count, int type, int peer, Comm, Stream);
  int (*receive)(void* out, size_t count, int type, int peer, Comm, Stream);
  int (*group_start)();
  int (*group_end)();

  static constexpr unsigned kStreamNonBlocking = 1;
  static constexpr unsigned kEventTimed = 0;
  static constexpr unsigned kEventRecordDefault = 0;
  static constexpr unsigned kEventRecordExternal = 1;
  static constexpr int kCudaNotReady = 600;

  int (*set_device)(int device);
  int (*device_bus_id)(char* text, int length, int device);
  int (*stream_create)(Stream* stream, unsigned flags);
  int (*stream_destroy)(Stream stream);
  int (*stream_wait_event)(Stream stream, Event event, unsigned flags);
  int (*event_create)(Event* event, unsigned flags);
  int (*event_destroy)(Event event);
  int (*event_record)(Event event, Stream stream, unsigned flags);
  int (*event_query)(Event event);
  int (*event_elapsed)(float* milliseconds, Event from, Event to);
};

/// Loads libnccl.so.2 (the file WEFT_NCCL_LIBRARY names, when set) and looks the CUDA runtime up in
/// this process, once. kUnavailable says what is missing.
Result<const NcclLibrary*> LoadNccl();

}  // namespace weft::engine
