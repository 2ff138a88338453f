#pragma once

// Replaces the header of the CUDA toolkit, as cuda_runtime.h does: calls of host code alone.

#include <cuda_runtime.h>
