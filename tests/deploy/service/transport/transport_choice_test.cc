#include "deploy/service/transport/transport_choice.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/core/base/expect_error.h"

namespace tributary {
namespace {

using Ports = std::vector<std::string>;

TEST(TransportChoice, AutoTakesUcxWhereEveryMachineHasMoreThanTcp) {
  const auto choose = [](const Ports& ports) {
    const ChosenTransport chosen = choose_transport({}, ports);
    return chosen.scheme + ", " + chosen.reason;
  };
  EXPECT_EQ(choose({"mlx5_0:1", "mlx5_1:1"}), "ucx, auto: RDMA by mlx5_0:1");
  EXPECT_EQ(choose({"mlx5_0:1", ""}), "tcp, auto: no RDMA port for UCX at worker 1");
  EXPECT_EQ(choose({""}), "tcp, auto: no RDMA port for UCX");
}

TEST(TransportChoice, WhatOneTransportAloneHasDecides) {
  constexpr auto kAuto = TransportChoice::kAuto;
  constexpr auto kUcx = TransportChoice::kUcx;
  constexpr auto kTcp = TransportChoice::kTcp;
  const Ports rdma{"mlx5_0:1"};
  EXPECT_EQ(choose_transport({.choice = kAuto, .encrypted = true}, rdma).scheme, "tls");
  EXPECT_EQ(choose_transport({.choice = kTcp, .encrypted = true}, rdma).scheme, "tls");
  EXPECT_EQ(choose_transport({.choice = kAuto, .shared_memory = true}, Ports{""}).scheme, "ucx");
  EXPECT_EQ(choose_transport({.choice = kUcx, .shared_memory = true}, Ports{""}).scheme, "ucx");
  for (const WantedTransport& wanted :
       {WantedTransport{.choice = kUcx, .encrypted = true},
        WantedTransport{.choice = kTcp, .shared_memory = true},
        WantedTransport{.encrypted = true, .shared_memory = true}}) {
    EXPECT_EQ(code_of([&] { (void)choose_transport(wanted, rdma); }), ErrorCode::kInvalidArgument);
  }
}

TEST(TransportChoice, OneProcessIsNotAskedForByName) {
  EXPECT_EQ(choose_transport({.choice = TransportChoice::kLocal}, Ports{"mlx5_0:1"}).scheme,
            "local");
  EXPECT_EQ(transport_choice_name(TransportChoice::kLocal), "local");
  EXPECT_EQ(code_of([] { (void)parse_transport_choice("local"); }), ErrorCode::kInvalidArgument);
}

TEST(TransportChoice, IsTakenByName) {
  EXPECT_EQ(choose_transport({.choice = TransportChoice::kUcx}, Ports{""}).scheme, "ucx");
  EXPECT_EQ(choose_transport({.choice = TransportChoice::kTcp}, Ports{"mlx5_0:1"}).scheme, "tcp");
  for (const auto choice : {TransportChoice::kAuto, TransportChoice::kUcx, TransportChoice::kTcp}) {
    EXPECT_EQ(parse_transport_choice(transport_choice_name(choice)), choice);
  }
  EXPECT_EQ(code_of([] { (void)parse_transport_choice("tls"); }), ErrorCode::kInvalidArgument);
}

}  // namespace
}  // namespace tributary
