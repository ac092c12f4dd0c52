// The report of a replay: percentiles, rates, the text that people read and the JSON that programs
// do.
#include "deploy/app/replay/replay_report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "core/base/error.h"

namespace tributary {
namespace {

using testing::HasSubstr;

TEST(Percentiles, AreOrderStatisticsOfTheSamples) {
  std::vector<double> none;
  EXPECT_EQ(percentiles(none).p50, 0);
  EXPECT_EQ(percentiles(none).p99, 0);

  std::vector<double> one = {7};
  EXPECT_EQ(percentiles(one).p50, 7);
  EXPECT_EQ(percentiles(one).p99, 7);

  // 0 .. 100, shuffled by a stride that 101 does not divide: the nearest rank of a share is itself.
  std::vector<double> many(101);
  for (std::size_t i = 0; i < many.size(); ++i) many[i * 37 % many.size()] = static_cast<double>(i);
  const Percentiles p = percentiles(many);
  EXPECT_EQ(p.p50, 50);
  EXPECT_EQ(p.p99, 99);
}

TEST(ReplayReport, RateIsPerSecondOfStepTime) {
  ReplayReport report;
  EXPECT_EQ(report.tokens_per_second(), 0);  // nothing ran: not a division by 0
  report.tokens = 30;
  report.seconds = 100;
  report.step_seconds = 2;
  EXPECT_EQ(report.tokens_per_second(), 15);
}

/// Every field has a value of its own.
ReplayReport sample() {
  ReplayReport r;
  r.pool = {.workers = 3,
            .backend = "cpu/TEST",
            .threads = "2, 3, 4",
            .communicator = "threads",
            .costs = "h200: a source",
            .pages_total = 22};
  r.requests = 11;
  r.steps = 12;
  r.tokens = 1300;
  r.prompt_tokens = 14000;
  r.seconds = 5.25;
  r.step_seconds = 2.5;
  r.settings = {{"processor", "a processor"}, {"layers", "7"}};
  r.ttft_s = {.mean = 0.25, .p50 = 0.5, .p90 = 0.0078125, .p99 = 2, .max = 3};
  r.tpot_ms = {.mean = 5, .p50 = 6, .p90 = 7, .p99 = 8, .max = 9};
  r.request_tpot_ms = {.mean = 16, .p50 = 17, .p90 = 18, .p99 = 19, .max = 20};
  r.tpot_bound_ms = 40;
  r.goodput_per_s = 1.5;
  r.step_us = {150, 990};
  r.fill_us = {1000, 2000};
  RoundFigures rounds;
  for (std::size_t p = 0; p < kPhases; ++p) {
    rounds.phase_us[p] = {static_cast<double>(p) + 1000, static_cast<double>(p) + 2000};
  }
  rounds.balance = 1.0625;
  rounds.mean_spread = 2.5;
  rounds.exchange_bytes = 3 << 20;
  rounds.planned_exchange_bytes = 4 << 20;
  rounds.state_bytes = 2 << 20;
  rounds.peak_pages = 21;
  rounds.pages_in_use_at_end = 23;
  r.rounds = rounds;
  r.canaries = 17;
  r.canary_max_relative_error = 0.00125;
  r.digest = 0x0123456789abcdefULL;
  return r;
}

TEST(ReplayReport, JsonHasEveryFigureUnderItsKey) {
  const auto json = nlohmann::json::parse(to_json(sample()));
  EXPECT_EQ(json.at("digest"), "0123456789abcdef");  // a string: JSON's numbers lose bits
  EXPECT_EQ(json.at("tokens_per_second"), 520);
  EXPECT_EQ(json.at("step_us").at("p50"), 150);
  EXPECT_EQ(json.at("step_us").at("p99"), 990);
  std::vector<std::string> phases;
  for (const auto& [name, figures] : json.at("phase_us").items()) {
    phases.push_back(name);
    EXPECT_EQ(figures.at("p99").get<double>() - figures.at("p50").get<double>(), 1000);
  }
  EXPECT_THAT(phases, testing::UnorderedElementsAre("fill", "plan", "project", "query_exchange",
                                                    "attend", "partial_exchange", "combine"));
  EXPECT_EQ(json.at("phase_us").at("attend").at("p50"), 1003);
  EXPECT_EQ(json.at("balance"), 1.0625);
  EXPECT_EQ(json.at("exchange_bytes"), 3 << 20);
  EXPECT_EQ(json.at("planned_exchange_bytes"), 4 << 20);
  EXPECT_EQ(json.at("partial_state_bytes"), 2 << 20);
  EXPECT_EQ(json.at("canaries"), 17);
  EXPECT_EQ(json.at("canary_max_relative_error"), 0.00125);
  EXPECT_EQ(json.at("peak_pages"), 21);
  EXPECT_EQ(json.at("pages_total"), 22);
  EXPECT_EQ(json.at("pages_in_use_at_end"), 23);
  EXPECT_EQ(json.at("workers"), 3);
  EXPECT_EQ(json.at("communicator"), "threads");
  EXPECT_EQ(json.at("costs"), "h200: a source");
  EXPECT_EQ(json.at("backend"), "cpu/TEST");
  EXPECT_EQ(json.at("threads"), "2, 3, 4");
  EXPECT_EQ(json.at("partial"), false);
  EXPECT_EQ(json.at("settings").at("layers"), "7");
  EXPECT_EQ(json.at("finished_per_s"), 11 / 5.25);
  EXPECT_EQ(json.at("tokens_per_s"), 1300 / 5.25);
  EXPECT_EQ(json.at("goodput_per_s"), 1.5);
  EXPECT_EQ(json.at("tpot_bound_ms"), 40);
  EXPECT_EQ(json.at("ttft_s").at("p90"), 0.0078125);
  EXPECT_EQ(json.at("tpot_ms").at("mean"), 5);
  EXPECT_EQ(json.at("request_tpot_ms").at("p99"), 19);
  EXPECT_EQ(json.at("requests"), 11);
  EXPECT_EQ(json.at("steps"), 12);
  EXPECT_EQ(json.at("tokens"), 1300);
  EXPECT_EQ(json.at("prompt_tokens"), 14000);
  EXPECT_EQ(json.at("mean_spread"), 2.5);
  EXPECT_EQ(json.at("seconds"), 5.25);
  EXPECT_EQ(json.at("step_seconds"), 2.5);
}

TEST(ReplayReport, TextShowsTheSameFigures) {
  const std::string text = to_text(sample());
  for (const char* figure : {"3 (threads), backend cpu/TEST, threads 2, 3, 4",
                             "h200: a source",
                             "a processor",
                             "2.095, 1.500 with at most 40 ms a token",
                             "mean 250.00 ms, p50 500.00, p90 7.81, p99 2000",
                             "mean 5.00 ms, p50 6.00, p90 7.00, p99 8.00",
                             "mean 16.00 ms, p50 17.00, p90 18.00",
                             "1300 tokens of 11 requests in 12 steps, 14000 prompt tokens",
                             "520.0",
                             "2.50 s in steps",
                             "5.25 s in all",
                             "p50 150 us, p99 990 us",
                             "attend           p50 1003 us, p99 2003 us",
                             "1.062",
                             "2.50 workers a sequence",
                             "3.00 MiB (4.00 MiB planned), 2.00 MiB",
                             "21 of 22 used at the peak, 23 at the end",
                             "17 outputs",
                             "0.00125",
                             "0123456789abcdef"}) {
    EXPECT_THAT(text, HasSubstr(figure));
  }
}

TEST(ReplayReport, WhatAServiceDoesNotSayIsUnknown) {
  ReplayReport report = sample();
  report.service = "http://tier:7300";
  report.rounds.reset();
  auto json = nlohmann::json::parse(to_json(report));
  EXPECT_EQ(json.at("service"), "http://tier:7300");
  EXPECT_EQ(json.at("workers"), 3);
  EXPECT_EQ(json.at("phase_us").at("fill").at("p50"), 1000);
  EXPECT_TRUE(json.at("phase_us").at("attend").is_null());
  for (const char* key : {"balance", "mean_spread", "exchange_bytes", "planned_exchange_bytes",
                          "partial_state_bytes", "peak_pages", "pages_in_use_at_end"}) {
    EXPECT_TRUE(json.at(key).is_null()) << key;
  }
  report.pool.reset();
  json = nlohmann::json::parse(to_json(report));
  for (const char* key : {"workers", "communicator", "costs", "backend", "pages_total"}) {
    EXPECT_TRUE(json.at(key).is_null()) << key;
  }
  for (const char* line : {"workers            unknown", "attend           unknown",
                           "spread             unknown", "p50 1000 us, p99 2000 us"}) {
    EXPECT_THAT(to_text(report), HasSubstr(line));
  }
}

TEST(ReplayReport, ApartialOneSaysSoFirst) {
  ReplayReport report = sample();
  EXPECT_THAT(to_text(report), testing::Not(HasSubstr("PARTIAL")));
  report.ended_by = SIGTERM;
  EXPECT_THAT(to_text(report), testing::StartsWith("PARTIAL: ended by SIGTERM"));
  EXPECT_EQ(nlohmann::json::parse(to_json(report)).at("partial"), true);
}

TEST(ReplayReport, ABaselineNamesOtherSettingsAndRatios) {
  const auto path =
      std::filesystem::temp_directory_path() / ("tributary_baseline_" + std::to_string(getpid()));
  std::ofstream(path) << to_json(sample());
  ReplayReport now = sample();
  const Baseline baseline = read_baseline(path);
  EXPECT_THAT(compare_reports(baseline, to_json(now)), testing::Not(HasSubstr("other ")));
  now.settings[1].second = "8";
  now.settings.emplace_back("spread", "all");
  now.pool->threads = "1";
  now.step_seconds = 5;
  now.digest = 1;
  const std::string text = compare_reports(baseline, to_json(now));
  EXPECT_THAT(text, HasSubstr("other layers             7, now 8\n"));
  EXPECT_THAT(text, HasSubstr("other spread             nothing, now all\n"));
  EXPECT_THAT(text, HasSubstr("other threads            2, 3, 4, now 1\n"));
  EXPECT_THAT(text, HasSubstr("other digest\n"));
  EXPECT_THAT(text, testing::Not(HasSubstr("processor")));
  EXPECT_THAT(text, testing::ContainsRegex("tokens_per_second +520 +260 +0.500\n"));
  EXPECT_THAT(text, testing::ContainsRegex("ttft_s/p50 +0.5 +0.5 +1.000\n"));
  for (const char* other : {"{}", "{\"settings\": 1}", "[]", "x"}) {
    std::ofstream(path) << other;
    EXPECT_THROW((void)read_baseline(path), Error) << other;
  }
  std::filesystem::remove(path);
  EXPECT_THROW((void)read_baseline(path), Error);
}

TEST(ReplayReport, OfNothingIsStillWellFormed) {
  const auto json = nlohmann::json::parse(to_json(ReplayReport{}));
  EXPECT_EQ(json.at("digest"), "0000000000000000");
  EXPECT_EQ(json.at("tokens_per_second"), 0);
  EXPECT_THAT(to_text(ReplayReport{}), HasSubstr("0000000000000000"));
}

}  // namespace
}  // namespace tributary
