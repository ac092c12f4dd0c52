// The options of `tributary up`.
#pragma once

#include "deploy/service/control/control_options.h"
#include "deploy/service/worker/worker_options.h"

namespace tributary {

struct UpOptions {
  int workers = 2;
  ControlOptions control;
  WorkerOptions worker;  // without those that say where the control plane is
  int start_timeout_ms = 60'000;
  bool verbose = false;

  template <class Visitor>
  void for_each_option(Visitor& v) {
    v(workers, "--workers", {1, 1024}, "Workers of the pool, each a process");
    v(start_timeout_ms, "--start-timeout-ms", {1, kMaxOptionMs},
      "How long the service may take until it is ready");
    v(verbose, "--verbose", "Show what mpirun says, too");
    auto door = v.in_group("Control plane and certificates");
    control.for_each_plane_option(door);
    visit_certificate(door, control.tls_certificate, control.tls_key,
                      "serves https, and encrypts the data plane");
    visit_credentials(door, control.token_file, worker.certificate_authority);
    worker.for_each_pool_option(v, "--data-listen");
  }
};

}  // namespace tributary
