#include "common/formats/regex_dialect.h"

#include <array>
#include <cctype>
#include <optional>
#include <utility>
#include <vector>

#include "common/formats/utf8.h"
#include "common/text.h"

namespace weft {
namespace {

// Inside of brackets. White_Space of Unicode; PCRE2's \s has U+180E, too.
constexpr std::string_view kSpace =
    "\\x{9}-\\x{d}\\x{20}\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}"
    "\\x{205f}\\x{3000}";
constexpr std::string_view kNoSpace =
    "\\x{0}-\\x{8}\\x{e}-\\x{1f}\\x{21}-\\x{84}\\x{86}-\\x{9f}\\x{a1}-\\x{167f}\\x{1681}-\\x{1fff}"
    "\\x{200b}-\\x{2027}\\x{202a}-\\x{202e}\\x{2030}-\\x{205e}\\x{2060}-\\x{2fff}\\x{3001}-\\x{"
    "10ffff}";
constexpr std::string_view kWord = "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}";
constexpr std::string_view kHexDigit = "0-9a-fA-F";
constexpr int kDeepest = 50;

std::string Brackets(std::string_view items, bool negated) {
  return std::string(negated ? "[^" : "[") + std::string(items) + "]";
}

/// Any character but one that `matcher` matches.
std::string AnyBut(const std::string& matcher) {
  return "(?:(?!" + matcher + ")(?s:.))";
}

/// Names of general categories and of the classes of POSIX, without case, spaces and underscores;
/// others that PCRE2 takes as a script when it is one.
std::optional<std::string_view> ShortName(std::string_view name) {
  constexpr std::array<std::pair<std::string_view, std::string_view>, 38> kNames = {{
      {"letter", "L"},
      {"casedletter", "L&"},
      {"uppercaseletter", "Lu"},
      {"lowercaseletter", "Ll"},
      {"titlecaseletter", "Lt"},
      {"modifierletter", "Lm"},
      {"otherletter", "Lo"},
      {"mark", "M"},
      {"nonspacingmark", "Mn"},
      {"spacingmark", "Mc"},
      {"enclosingmark", "Me"},
      {"number", "N"},
      {"decimalnumber", "Nd"},
      {"letternumber", "Nl"},
      {"othernumber", "No"},
      {"punctuation", "P"},
      {"connectorpunctuation", "Pc"},
      {"dashpunctuation", "Pd"},
      {"openpunctuation", "Ps"},
      {"closepunctuation", "Pe"},
      {"initialpunctuation", "Pi"},
      {"finalpunctuation", "Pf"},
      {"otherpunctuation", "Po"},
      {"symbol", "S"},
      {"mathsymbol", "Sm"},
      {"currencysymbol", "Sc"},
      {"modifiersymbol", "Sk"},
      {"othersymbol", "So"},
      {"separator", "Z"},
      {"spaceseparator", "Zs"},
      {"lineseparator", "Zl"},
      {"paragraphseparator", "Zp"},
      {"other", "C"},
      {"alpha", "Alphabetic"},
      {"digit", "Nd"},
      {"lower", "Lowercase"},
      {"upper", "Uppercase"},
      {"space", "White_Space"},
  }};
  std::string plain = AsciiLowerCase(name);
  std::erase_if(plain, [](char c) { return c == ' ' || c == '_' || c == '-'; });
  for (const auto& [known, shorter] : kNames) {
    if (plain == known) return shorter;
  }
  return std::nullopt;
}

bool IsProperty(std::string_view name) {
  constexpr std::array<std::string_view, 12> kKnown = {
      "any",   "alphabetic",  "lowercase", "uppercase",          "ideographic",
      "emoji", "white_space", "ascii",     "emoji_presentation", "extended_pictographic",
      "math",  "dash"};
  const std::string lower = AsciiLowerCase(name);
  for (std::string_view known : kKnown) {
    if (lower == known) return true;
  }
  return name.size() <= 2;  // a category
}

class Translator {
 public:
  explicit Translator(std::string_view regex) : in_(regex) {}

  Result<std::string> Run() {
    if (CountInvalidUtf8(in_) > 0) return InvalidError("it is not UTF-8");
    while (at_ < in_.size()) WEFT_RETURN_IF_ERROR(Next());
    if (!groups_.empty()) return Bad("a group is not closed");
    return std::move(out_);
  }

 private:
  static constexpr size_t kNoAtom = std::string::npos;

  Status Bad(const std::string& what) const {
    return InvalidError(what + " at byte " + std::to_string(at_));
  }
  bool Take(std::string_view text) {
    if (!in_.substr(at_).starts_with(text)) return false;
    at_ += text.size();
    return true;
  }
  std::string_view Character() const {
    return in_.substr(at_, static_cast<size_t>(ReadUtf8(in_, at_).bytes));
  }
  void Atom(std::string_view text) {
    atom_ = out_.size();
    out_ += text;
  }

  Status Next() {
    switch (in_[at_]) {
      case '\\':
        return OutsideEscape();
      case '[': {
        ++at_;
        WEFT_ASSIGN_OR_RETURN(std::string matcher, Class(0));
        Atom(matcher);
        return OkStatus();
      }
      case '(':
        return Open();
      case ')':
        if (groups_.empty()) return Bad("a ) without its (");
        ++at_;
        out_ += ')';
        atom_ = groups_.back();
        groups_.pop_back();
        return OkStatus();
      case '|':
      case '^':
      case '$':
        out_ += in_[at_++];
        atom_ = kNoAtom;
        return OkStatus();
      case '*':
      case '+':
      case '?':
        return Quantifier(std::string(1, in_[at_++]), /*interval=*/false, /*exact=*/false);
      case '{':
        return Interval();
      default: {
        const std::string_view character = Character();
        at_ += character.size();
        Atom(character);
        return OkStatus();
      }
    }
  }

  void Wrap(std::string_view open) {
    out_.insert(atom_, open);
    out_ += ')';
  }

  Status Quantifier(const std::string& text, bool interval, bool exact) {
    if (atom_ == kNoAtom) return Bad("nothing to repeat");
    if (quantified_ == out_.size()) Wrap("(?:");
    out_ += text;
    if (!interval) {
      if (Take("?")) {
        out_ += '?';
      } else if (Take("+")) {
        out_ += '+';
      }
    } else if (!exact && Take("?")) {
      out_ += '?';
    }
    // What follows an interval repeats all of it: another round of this function sees to that.
    quantified_ = out_.size();
    return OkStatus();
  }

  Status Interval() {
    size_t end = at_ + 1;
    auto number = [&] {
      std::string digits;
      while (end < in_.size() && in_[end] >= '0' && in_[end] <= '9') digits += in_[end++];
      return digits;
    };
    const std::string least = number();
    const bool comma = end < in_.size() && in_[end] == ',';
    if (comma) ++end;
    const std::string most = comma ? number() : least;
    if (end >= in_.size() || in_[end] != '}' || (least.empty() && most.empty())) {
      ++at_;
      Atom("\\{");
      return OkStatus();
    }
    at_ = end + 1;
    std::string text = "{";
    text += least.empty() ? "0" : least;
    if (comma) text += "," + most;
    return Quantifier(text + "}", /*interval=*/true, /*exact=*/!comma);
  }

  Status Open() {
    const bool first = at_ == 0 || in_[at_ - 1] == '(';
    const size_t start = out_.size();
    if (Take("(?#")) {
      const size_t end = in_.find(')', at_);
      if (end == std::string_view::npos) return Bad("a comment is not closed");
      at_ = end + 1;
      return OkStatus();
    }
    ++at_;
    if (Take("*")) return Bad("(* is not supported");
    if (!Take("?")) {
      out_ += '(';
    } else if (Take("P<") || Take("<")) {
      if (Take("=")) {
        out_ += "(?<=";
      } else if (Take("!")) {
        out_ += "(?<!";
      } else {
        const size_t end = in_.find('>', at_);
        if (end == std::string_view::npos) return Bad("a name of a group is not closed");
        out_ += "(?<" + std::string(in_.substr(at_, end - at_)) + ">";
        at_ = end + 1;
      }
    } else if (Take(":") || Take("=") || Take("!") || Take(">")) {
      out_ += std::string("(?") + in_[at_ - 1];
    } else {
      std::string flags;
      for (; at_ < in_.size() && (in_[at_] == 'i' || in_[at_] == 'm' || in_[at_] == '-'); ++at_) {
        flags += in_[at_] == 'm' ? 's' : in_[at_];  // Ruby's m lets . match newlines
      }
      if (flags.empty() || at_ == in_.size()) return Bad("a group of this kind is not supported");
      if (Take(")")) {
        if (!first) return Bad("(?" + flags + ") other than at the start is not supported");
        out_ += "(?" + flags + ")";
        atom_ = kNoAtom;
        return OkStatus();
      }
      if (!Take(":")) return Bad("a group of this kind is not supported");
      out_ += "(?" + flags + ":";
    }
    if (groups_.size() >= kDeepest) return Bad("groups are nested too deep");
    groups_.push_back(start);
    atom_ = kNoAtom;
    return OkStatus();
  }

  /// \p{...}, read up to the end; `at_` is behind the p or P.
  Result<std::string> Property(bool negated) {
    std::string_view name;
    if (Take("{")) {
      const size_t end = in_.find('}', at_);
      if (end == std::string_view::npos || end - at_ > 64) return Bad("a \\p{ is not closed");
      name = in_.substr(at_, end - at_);
      at_ = end + 1;
    } else if (at_ < in_.size()) {
      name = in_.substr(at_++, 1);
    }
    if (name.starts_with('^')) {
      negated = !negated;
      name.remove_prefix(1);
    }
    for (char c : name) {
      if (!std::isalnum(static_cast<unsigned char>(c)) && c != '_' && c != ' ' && c != '-' &&
          c != '=' && c != '&') {
        return Bad("the property " + std::string(name) + " is not known");
      }
    }
    if (name.empty()) return Bad("a \\p without a name");
    std::string property(name);
    if (std::optional<std::string_view> shorter = ShortName(name)) {
      property = *shorter;
    } else if (const size_t equals = name.find('='); equals != std::string_view::npos) {
      property = name.substr(0, equals) == "scx" ? "scx:" : "sc:";
      property += name.substr(equals + 1);
    } else if (!IsProperty(name)) {
      property = "sc:" + property;  // PCRE2 would match the extensions of the script, too
    }
    return std::string(negated ? "\\P{" : "\\p{") + property + "}";
  }

  /// A character given by its number, or a control character; nothing for other escapes. `at_` is
  /// at the letter.
  Result<std::optional<std::string>> CharacterEscape() {
    const char c = in_[at_];
    auto hex = [&](size_t longest) {
      std::string digits;
      while (digits.size() < longest && at_ < in_.size() &&
             std::isxdigit(static_cast<unsigned char>(in_[at_]))) {
        digits += in_[at_++];
      }
      return digits;
    };
    if (c == 'x' || c == 'u') {
      ++at_;
      const bool braces = c == 'x' && Take("{");
      const std::string digits = hex(braces ? 8 : c == 'u' ? 4 : 2);
      if (digits.empty() || (c == 'u' && digits.size() != 4) || (braces && !Take("}"))) {
        return Bad("a character's number is malformed");
      }
      return std::optional("\\x{" + digits + "}");
    }
    constexpr std::array<std::pair<char, const char*>, 8> kControls = {{{'t', "\\x{9}"},
                                                                        {'n', "\\x{a}"},
                                                                        {'v', "\\x{b}"},
                                                                        {'f', "\\x{c}"},
                                                                        {'r', "\\x{d}"},
                                                                        {'a', "\\x{7}"},
                                                                        {'e', "\\x{1b}"},
                                                                        {'0', "\\x{0}"}}};
    for (const auto& [letter, code] : kControls) {
      if (c != letter) continue;
      ++at_;
      return std::optional<std::string>(code);
    }
    if (std::isalnum(static_cast<unsigned char>(c))) return std::optional<std::string>();
    const std::string_view character = Character();
    at_ += character.size();
    return std::optional((character.size() == 1 ? "\\" : "") + std::string(character));
  }

  Status OutsideEscape() {
    if (++at_ == in_.size()) return Bad("a \\ at the end");
    WEFT_ASSIGN_OR_RETURN(std::optional<std::string> character, CharacterEscape());
    if (character) {
      Atom(*character);
      return OkStatus();
    }
    const char c = in_[at_++];
    const std::string word = Brackets(kWord, false);
    switch (c) {
      case 'p':
      case 'P': {
        WEFT_ASSIGN_OR_RETURN(std::string property, Property(c == 'P'));
        Atom(property);
        return OkStatus();
      }
      case 'd':
        Atom("\\p{Nd}");
        return OkStatus();
      case 'D':
        Atom("\\P{Nd}");
        return OkStatus();
      case 's':
      case 'S':
        Atom(Brackets(kSpace, c == 'S'));
        return OkStatus();
      case 'w':
      case 'W':
        Atom(Brackets(kWord, c == 'W'));
        return OkStatus();
      case 'h':
      case 'H':
        Atom(Brackets(kHexDigit, c == 'H'));
        return OkStatus();
      case 'b':
        Atom("(?:(?<=" + word + ")(?!" + word + ")|(?<!" + word + ")(?=" + word + "))");
        return OkStatus();
      case 'B':
        Atom("(?:(?<=" + word + ")(?=" + word + ")|(?<!" + word + ")(?!" + word + "))");
        return OkStatus();
      case 'A':
      case 'z':
      case 'Z':
      case 'G':
      case 'R':
      case 'X':
        Atom(std::string("\\") + c);
        return OkStatus();
      default:
        if (c >= '1' && c <= '9') {
          Atom(std::string("\\g{") + c + "}");
          return OkStatus();
        }
        --at_;
        return Bad(std::string("\\") + c + " is not supported");
    }
  }

  /// One part of a class between &&s: characters that brackets hold, and matchers that they cannot.
  struct Part {
    std::string items;
    std::vector<std::string> more;

    std::string Matcher() const {
      if (more.empty()) return Brackets(items, false);
      std::string out = "(?:";
      if (!items.empty()) out += Brackets(items, false) + "|";
      for (size_t i = 0; i < more.size(); ++i) out += (i > 0 ? "|" : "") + more[i];
      return out + ")";
    }
  };

  /// A class; `at_` is behind its [.
  Result<std::string> Class(int depth) {
    if (depth > kDeepest) return Bad("classes are nested too deep");
    const bool negated = Take("^");
    std::vector<Part> parts(1);
    bool first = true;
    for (;; first = false) {
      if (at_ >= in_.size()) return Bad("a class is not closed");
      Part& part = parts.back();
      if (in_[at_] == ']' && !first) break;
      if (Take("&&")) {
        parts.emplace_back();
      } else if (Take("[:")) {
        WEFT_RETURN_IF_ERROR(PosixClass(part));
      } else if (Take("[")) {
        WEFT_ASSIGN_OR_RETURN(std::string inner, Class(depth + 1));
        part.more.push_back(std::move(inner));
      } else if (in_[at_] == '\\') {
        WEFT_RETURN_IF_ERROR(InsideEscape(part));
      } else {
        const std::string_view character = Character();
        at_ += character.size();
        if (character == "]") part.items += '\\';
        part.items += character;
      }
    }
    ++at_;
    for (const Part& part : parts) {
      if (part.items.empty() && part.more.empty()) return Bad("a class is empty");
    }
    if (parts.size() == 1 && parts[0].more.empty()) return Brackets(parts[0].items, negated);
    std::string matcher = parts[0].Matcher();
    if (parts.size() > 1) {
      std::string all = "(?:";
      for (size_t i = 0; i + 1 < parts.size(); ++i) all += "(?=" + parts[i].Matcher() + ")";
      matcher = all + parts.back().Matcher() + ")";
    }
    return negated ? AnyBut(matcher) : matcher;
  }

  Status PosixClass(Part& part) {
    const size_t end = in_.find(":]", at_);
    const std::string_view name = in_.substr(at_, std::min(end, in_.size()) - at_);
    std::optional<std::string_view> shorter = ShortName(name);
    if (end == std::string_view::npos || !shorter) {
      return Bad("the class [:" + std::string(name.substr(0, 40)) + " is not supported");
    }
    at_ = end + 2;
    part.items += "\\p{" + std::string(*shorter) + "}";
    return OkStatus();
  }

  Status InsideEscape(Part& part) {
    if (++at_ == in_.size()) return Bad("a \\ at the end");
    WEFT_ASSIGN_OR_RETURN(std::optional<std::string> character, CharacterEscape());
    if (character) {
      part.items += *character;
      return OkStatus();
    }
    const char c = in_[at_++];
    switch (c) {
      case 'p':
      case 'P': {
        WEFT_ASSIGN_OR_RETURN(std::string property, Property(c == 'P'));
        part.items += property;
        return OkStatus();
      }
      case 'd':
        part.items += "\\p{Nd}";
        return OkStatus();
      case 'D':
        part.items += "\\P{Nd}";
        return OkStatus();
      case 's':
        part.items += kSpace;
        return OkStatus();
      case 'S':
        part.items += kNoSpace;
        return OkStatus();
      case 'w':
        part.items += kWord;
        return OkStatus();
      case 'W':
        part.more.push_back(Brackets(kWord, true));
        return OkStatus();
      case 'h':
        part.items += kHexDigit;
        return OkStatus();
      case 'H':
        part.more.push_back(Brackets(kHexDigit, true));
        return OkStatus();
      case 'b':
        part.items += "\\x{8}";
        return OkStatus();
      default:
        --at_;
        return Bad(std::string("\\") + c + " is not supported in a class");
    }
  }

  std::string_view in_;
  size_t at_ = 0;
  std::string out_;
  size_t atom_ = kNoAtom;        ///< Where what a quantifier repeats begins in `out_`.
  size_t quantified_ = kNoAtom;  ///< Where in `out_` the last quantifier ends.
  std::vector<size_t> groups_;   ///< Where open groups begin in `out_`.
};

}  // namespace

Result<std::string> RegexForPcre2(std::string_view regex) {
  return Translator(regex).Run();
}

}  // namespace weft
