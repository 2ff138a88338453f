#include "common/library_headers.h"
