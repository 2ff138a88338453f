#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "common/status.h"

namespace weft {

/// Bytes of the kernel's random source: nobody can guess them.
std::string RandomBytes(size_t count);

/// Lower-case hexadecimal digits, two a byte.
std::string HexOf(std::string_view bytes);

/// Whether two secrets are the same. Takes as long wherever they differ, so that the time reveals
/// nothing.
bool SameSecret(std::string_view a, std::string_view b);

/// Writes a file that only its owner can read (mode 0600), atomically and durably.
Status WriteSecretFile(const std::string& path, std::string_view text);

/// Reads a file that holds a secret, at most 1 MiB. kInvalid when it is of this user and others may
/// read or write it.
Result<std::string> ReadSecretFile(const std::string& path);

}  // namespace weft
