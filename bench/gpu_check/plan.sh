#!/usr/bin/env bash
# shellcheck disable=SC2034 # variables of gpu_check.sh and of each other
# Sourced by gpu_check.sh: what one run of ten minutes asks, in this order, and whom an answer
# suspects. NAME|LIMIT in seconds|NEEDS (a command, or @PROGRAM of DIR/bin)|COMMAND.

# A limit bounds a hang; the seconds that a check is expected to take are in README.md.
gpu_plan=(
  # The assumptions of the kernels, one question per process.
  "light.occupancy|20|@first_light|@first_light occupancy"
  "light.tma|20|@first_light|@first_light tma"
  "light.kmajor|20|@first_light|@first_light kmajor"
  "light.mnmajor|20|@first_light|@first_light mnmajor"
  "light.mnmajor_registers|20|@first_light|@first_light mnmajor_registers"
  "light.proxy|20|@first_light|@first_light proxy"
  "light.multicast|20|@first_light|@first_light multicast"
  "light.registers|20|@first_light|@first_light registers"
  "light.zero|20|@first_light|@first_light zero"
  # Every kernel against float64.
  "light.merge|20|@first_light|@first_light merge"
  "light.generic|40|@first_light|@first_light generic"
  "light.few1|40|@first_light|@first_light few1"
  "light.few2|40|@first_light|@first_light few2"
  "light.few4|40|@first_light|@first_light few4"
  "light.many1|60|@first_light|@first_light many1"
  "light.many2|60|@first_light|@first_light many2"
  "light.many_bits|40|@first_light|@first_light many_bits"
  # The same kernels over selected rows, which must have the bits of a leaf of them alone.
  "light.selected_generic|40|@first_light|@first_light selected_generic"
  "light.selected_few1|40|@first_light|@first_light selected_few1"
  "light.selected_few2|40|@first_light|@first_light selected_few2"
  "light.selected_few4|40|@first_light|@first_light selected_few4"
  "light.selected_many|60|@first_light|@first_light selected_many"
  # While blocks of another stream, as an exchange's, keep 16 multiprocessors.
  "light.beside|60|@first_light|@first_light beside"
  # The same with a word a warp, which says where each waits if the kernel does not end.
  "trace.many1|20|@first_light_trace|@first_light_trace many1"
  "trace.many2|20|@first_light_trace|@first_light_trace many2"
  "trace.selected_many|20|@first_light_trace|@first_light_trace selected_many"
  # Timing, whatever was wrong so far.
  "time.attend|60|@gpu_bench|@gpu_bench --quick --part attend"
  "time.rows|60|@gpu_bench|@gpu_bench --part rows"
  "time.selected|60|@gpu_bench|@gpu_bench --part selected"
  "time.merge|40|@gpu_bench|@gpu_bench --part merge"
  "time.orders16|60|@gpu_bench|@gpu_bench --part orders --heads 16"
  "time.orders64|60|@gpu_bench|@gpu_bench --part orders --heads 64"
  "time.orders128|60|@gpu_bench|@gpu_bench --part orders --heads 128"
  "time.without_multicast|40|@gpu_bench|@gpu_bench --quick --part attend --heads 128 --attend-kernel many1"
  "time.graphs|40|@gpu_bench|@gpu_bench --part graphs"
  # One launch each: tensor pipe, shared memory, L2, stalls.
  "ncu.many|60|ncu|ncu --clock-control none --set full --kernel-name regex:many_rows --launch-count 1 @gpu_bench --part once --heads 128"
  "ncu.few|60|ncu|ncu --clock-control none --set full --kernel-name regex:few_rows --launch-count 1 @gpu_bench --part once --heads 16"
  # The suites.
  "suite.attend|120|@gpu_backend_test|@gpu_backend_test --gtest_filter=*Attend*"
  "suite.codes|60|@gpu_backend_test|@gpu_backend_test --gtest_filter=*Codes*:*Format*"
  "suite.merge|60|@gpu_backend_test|@gpu_backend_test --gtest_filter=*Merge*"
  "suite.products|120|@gpu_backend_test|@gpu_backend_test --gtest_filter=*Gemm*:*RmsNorm*:*Rope*:*LatentRows*:*Convert*"
  "suite.graphs|60|@gpu_backend_test|@gpu_backend_test --gtest_filter=*Repla*:*Record*"
  "suite.rest|120|@gpu_backend_test|@gpu_backend_test --gtest_filter=-*Attend*:*Codes*:*Format*:*Merge*:*Gemm*:*RmsNorm*:*Rope*:*LatentRows*:*Convert*:*Repla*:*Record*"
  "grid.bits|60|@gpu_grid_test|@gpu_grid_test --gtest_filter=*BitsDoNot*:*Float64OnTheDevice*"
  "grid.scores|60|@gpu_grid_test|@gpu_grid_test --gtest_filter=*FlatAndSteep*:*EmptySequences*:*TheFastOrder*"
  "pool|120|@gpu_pool_test|@gpu_pool_test"
  "nccl|60|@gpu_communicator_test|@gpu_communicator_test"
  "program.info|20|@tributary|@tributary info"
  "program.verify|60|@tributary|@tributary verify --backend cuda --query bf16 tests/data/tiny.safetensors"
  "time.long|120|@gpu_bench|@gpu_bench --part attend --heads 128"
  # With what is left.
  "grid.every|240|@gpu_grid_test|@gpu_grid_test --gtest_filter=*EveryShape*"
  "memcheck.suite|120|compute-sanitizer|compute-sanitizer --tool memcheck --error-exitcode 9 @gpu_backend_test --gtest_filter=*AttendFollowsTheCausalBound*:*MergeIsTheWeightedMean*:*RowsFromOutsideAreAsAppended*:*DenseAttendWithoutKeys*"
  "memcheck.many|90|compute-sanitizer|compute-sanitizer --tool memcheck --error-exitcode 9 @first_light_patient many2 1"
  "racecheck.few|90|compute-sanitizer|compute-sanitizer --tool racecheck --error-exitcode 9 @first_light few1 1"
  "memcheck.selected|90|compute-sanitizer|compute-sanitizer --tool memcheck --error-exitcode 9 @first_light_patient selected_many 1"
)

# The same machinery without a GPU, as far as it goes: every packed program starts, and the kernels
# answer on the emulated device.
emulated_plan=(
  "start.first_light|20|@first_light|@first_light --help"
  "start.first_light_trace|20|@first_light_trace|@first_light_trace --help"
  "start.first_light_patient|20|@first_light_patient|@first_light_patient --help"
  "start.gpu_bench|20|@gpu_bench|@gpu_bench --help"
  "start.gpu_backend_test|20|@gpu_backend_test|@gpu_backend_test --gtest_list_tests"
  "start.gpu_grid_test|20|@gpu_grid_test|@gpu_grid_test --gtest_list_tests"
  "start.gpu_pool_test|20|@gpu_pool_test|@gpu_pool_test --gtest_list_tests"
  "start.gpu_communicator_test|20|@gpu_communicator_test|@gpu_communicator_test --gtest_list_tests"
  "program.info|20|@tributary|@tributary info"
  "program.verify|60|@tributary|@tributary verify --backend cpu --query bf16 tests/data/tiny.safetensors"
  "light.merge|60|@first_light_emulated|@first_light_emulated merge"
  "light.generic|60|@first_light_emulated|@first_light_emulated generic"
  "light.few1|60|@first_light_emulated|@first_light_emulated few1"
  "light.few2|60|@first_light_emulated|@first_light_emulated few2"
  "light.few4|60|@first_light_emulated|@first_light_emulated few4"
  "light.many1|120|@first_light_emulated|@first_light_emulated many1"
  "light.many2|240|@first_light_emulated|@first_light_emulated many2"
  "light.many_bits|240|@first_light_emulated|@first_light_emulated many_bits"
  "light.selected_generic|60|@first_light_emulated|@first_light_emulated selected_generic"
  "light.selected_few1|60|@first_light_emulated|@first_light_emulated selected_few1"
  "light.selected_few2|60|@first_light_emulated|@first_light_emulated selected_few2"
  "light.selected_few4|60|@first_light_emulated|@first_light_emulated selected_few4"
  "light.selected_many|240|@first_light_emulated|@first_light_emulated selected_many"
)

# suspect_of SYMPTOM: what a check printed after `symptom: `.
suspect_of() {
  case $1 in
    "a tile lands elsewhere") echo "the tensor map (sm90/tensor_map.cc) or chunk_at (sm90/layout.h)" ;;
    "K-major descriptor" | "lse wrong")
      echo "rows_operand (sm90/ptx90.h): the K-major descriptor; or the scale of scores" ;;
    "MN-major descriptor" | "lse right and o wrong")
      echo "columns_operand (sm90/ptx90.h): the MN-major descriptor, its two distances" ;;
    "only columns from 256") echo "the exchange of weights between the groups (sm90/softmax.h store_weights)" ;;
    "from page 2") echo "a parity: of a buffer's barriers, or of the weights' (sm90/many_rows.h, load.h)" ;;
    "only with two blocks" | multicast) echo "multicast, or arrivals in the other block (sm90/load.h)" ;;
    "only partial pages") echo "masking, or clear_unseen (sm90/softmax.h, load.h)" ;;
    "differs between runs" | "a product misses a store")
      echo "a fence: publish_writes before a product, or a barrier that is missing" ;;
    "a weight of zero changes a sum") echo "what sm90/README.md takes for granted of masked pages: bits depend on them" ;;
    "clusters wait for each other") echo "shared memory or registers of a block: fewer clusters than parts" ;;
    "NaN in a result") echo "rows that nobody sees: clear_unseen, or a state that nobody writes" ;;
    "differs from a leaf of the selected rows alone")
      echo "the search for a leaf's part of a list (selected_part in attend/unit.h), or the copies of rows (attend/row_stream.h, sm90/load_rows.h)" ;;
    "does not end") echo "a barrier that nobody reaches, or registers that nobody gives (setmaxnreg)" ;;
    *) echo "not in the key" ;;
  esac
}
