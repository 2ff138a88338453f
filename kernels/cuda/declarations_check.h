#pragma once

// Compares declarations of our own with those of a library's header, whose enumerations are ints in
// ours. Sources that include it call the struct of ours C.

namespace weft::kernels::cuda {

/// What a library's parameter is in our declarations.
template <class T>
struct Ours {
  using Type = T;
};
template <class T>
requires __is_enum(T) struct Ours<T> {
  using Type = int;
  static_assert(sizeof(T) == sizeof(int));
};

/// Whether a function of type Mine stands for one of the library.
template <class Mine, class Return, class... Params>
constexpr bool Same(Mine*, Return (*)(Params...)) {
  return __is_same(Mine, typename Ours<Return>::Type(typename Ours<Params>::Type...));
}

#define WEFT_SAME_NUMBER(ours, theirs) static_assert(int{C::ours} == static_cast<int>(theirs))
#define WEFT_SAME(member, function) \
  static_assert(Same(decltype(C::member)(nullptr), decltype (&(function))(nullptr)))

}  // namespace weft::kernels::cuda
