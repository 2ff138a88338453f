#include "tests/framework/test_headers.h"
