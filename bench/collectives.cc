// All-gathers of MPI and of a mesh over TCP, by the same processes, in turns:
//   deploy/mpirun.sh -np 4 --mca btl self,tcp build/release/bench/collectives
// Without `--mca btl` MPI uses shared memory.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "comm/mesh/mesh_communicator.h"
#include "comm/mpi/mpi_communicator.h"
#include "comm/mpi/mpi_environment.h"
#include "comm/tcp/tcp_transport.h"
#include "core/interface/clock.h"

namespace tributary {
namespace {

constexpr int kRounds = 40;
constexpr auto kPatience = std::chrono::seconds(60);

/// Rank 0's port reaches the others over MPI.
std::unique_ptr<Communicator> make_mesh(Communicator& mpi) {
  constexpr std::size_t kAddress = 64;
  std::vector<std::byte> address(kAddress);
  MeshConfig config{.rank = mpi.rank(), .ranks = mpi.size()};
  config.transport.listen = "127.0.0.1:0";
  const auto share = [&] {
    mpi.broadcast(address, 0, Deadline::after(kPatience)).throw_if_error();
  };
  if (mpi.rank() == 0) {
    config.listening = [&](const std::string& bound) {
      std::ranges::transform(bound, address.begin(), [](char c) { return std::byte(c); });
      share();
    };
  } else {
    share();
    config.leader = [&] { return std::string(reinterpret_cast<const char*>(address.data())); };
  }
  return join_mesh(config, make_tcp_transport, Deadline::after(kPatience), steady_clock());
}

double microseconds(Communicator& communicator, std::size_t bytes) {
  const std::vector<std::size_t> counts(static_cast<std::size_t>(communicator.size()), bytes);
  const std::vector<std::byte> send(bytes);
  std::vector<std::byte> recv(bytes * counts.size());
  const Time begin = std::chrono::steady_clock::now();
  communicator.all_gather(send, recv, counts, Deadline::after(kPatience)).throw_if_error();
  return seconds_since(begin) * 1e6;
}

double median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

void run(int* argc, char*** argv) {
  const MpiEnvironment environment(argc, argv);
  const auto mpi = make_mpi_communicator(environment, Deadline::after(kPatience));
  const auto mesh = make_mesh(*mpi);
  for (const std::size_t bytes : {std::size_t{8}, std::size_t{64} << 10, std::size_t{4} << 20}) {
    std::vector<double> by_mpi, by_mesh;
    for (int round = 0; round < kRounds; ++round) {
      by_mpi.push_back(microseconds(*mpi, bytes));
      by_mesh.push_back(microseconds(*mesh, bytes));
    }
    if (mpi->rank() != 0) continue;
    fmt::print("{:>8} bytes a rank, {} ranks: mpi {:8.0f} us, {} {:8.0f} us, {:.2f} times\n", bytes,
               mpi->size(), median(by_mpi), mesh->name(), median(by_mesh),
               median(by_mesh) / median(by_mpi));
  }
}

}  // namespace
}  // namespace tributary

int main(int argc, char** argv) {
  const tributary::Status status = tributary::status_of([&] { tributary::run(&argc, &argv); });
  if (status.ok()) return EXIT_SUCCESS;
  fmt::print(stderr, "collectives: {}\n", status.message());
  return EXIT_FAILURE;
}
