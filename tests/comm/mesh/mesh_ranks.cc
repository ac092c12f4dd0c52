#include "tests/comm/mesh/mesh_ranks.h"

#include <algorithm>
#include <chrono>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#include "comm/tcp/tcp_transport.h"
#include "core/interface/clock.h"

namespace tributary::testing_support {

MeshPlace::MeshPlace(MeshNetwork network) {
  if (network == MeshNetwork::kTcp) {
    any_ = "127.0.0.1:0";
    transport_ = make_tcp_transport;
  } else {
    any_ = "mesh:0";
    transport_ = [local = std::make_shared<LocalNetwork>()](const TransportConfig& config,
                                                            TransportHandler& handler) {
      return make_local_transport(local, config, handler);
    };
  }
}

MeshConfig MeshPlace::config(int rank, int ranks) {
  MeshConfig config{.rank = rank, .ranks = ranks};
  config.secret.fill(7);
  config.transport.listen = any_;
  if (rank == 0) {
    config.listening = [this](const std::string& bound) {
      const std::lock_guard lock(mutex_);
      leader_ = bound;
      changed_.notify_all();
    };
  } else {
    config.leader = [at = leader()] { return at; };
  }
  return config;
}

std::string MeshPlace::leader() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return !leader_.empty(); });
  return leader_;
}

void MeshPlace::listen_anew() {
  const std::lock_guard lock(mutex_);
  leader_.clear();
}

std::unique_ptr<Communicator> MeshPlace::join(int rank, int ranks) {
  return join_mesh(config(rank, ranks), transport_, Deadline::after(std::chrono::minutes(1)),
                   steady_clock());
}

void run_mesh(MeshNetwork network, int ranks, const std::function<void(Communicator&)>& body) {
  MeshPlace place(network);
  std::vector<std::unique_ptr<Communicator>> communicators(static_cast<std::size_t>(ranks));
  std::mutex mutex;
  std::exception_ptr first;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      auto& mine = communicators[static_cast<std::size_t>(rank)];
      try {
        mine = place.join(rank, ranks);
        body(*mine);
      } catch (const Error& error) {
        if (mine) mine->poison({error.code(), error.what()});
        const std::lock_guard lock(mutex);
        if (!first) first = std::current_exception();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  if (first) std::rethrow_exception(first);
}

}  // namespace tributary::testing_support
