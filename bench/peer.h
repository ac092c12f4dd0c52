// Another implementation in a process of its own, which is asked for times line by line.
#pragma once

#include <cstdio>
#include <optional>
#include <string>

namespace tributary::bench {

/// Talks to a program that prints `ready VERSION` and then answers each line with a number of
/// seconds.
class Peer {
 public:
  /// Starts `path script`. Returns no value if it does not start (a missing package, for
  /// example).
  [[nodiscard]] static std::optional<Peer> start(const std::string& path,
                                                 const std::string& script);
  Peer(Peer&& other) noexcept;
  Peer& operator=(Peer&&) = delete;
  ~Peer();

  /// The peer's own description: its libraries and their versions.
  [[nodiscard]] const std::string& version() const noexcept { return version_; }
  /// Throws kIo if the program has ended.
  [[nodiscard]] double ask(const std::string& line);

 private:
  Peer(int child, std::FILE* to, std::FILE* from) : child_(child), to_(to), from_(from) {}
  [[nodiscard]] std::optional<std::string> read_line();

  int child_;
  std::FILE* to_;
  std::FILE* from_;
  std::string version_;
};

}  // namespace tributary::bench
