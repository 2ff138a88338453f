#pragma once

namespace gloo {

// Debian's libgloo-dev leaves this header out, which those of its TCP connections include. Whoever
// derives from their classes, and lets the library make and use their members, needs no more of
// these than their names, and of the one that is a member by value that it is not too small: the
// library has a weak pointer there.

template <class T>
class NonOwningPtr;

template <class T>
class WeakNonOwningPtr {
  void* members_[2] = {};
};

}  // namespace gloo
