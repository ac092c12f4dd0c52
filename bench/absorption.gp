# Plots the time of a decode step, of its attention, and the memory over the length: five forms,
# batch 1 and 32. bench/absorption runs this; by hand:
#   gnuplot -e "table='absorption.tsv'; picture='absorption.png'" absorption.gp
set terminal pngcairo size 1700,1000 font ",11"
set output picture
set multiplot layout 2,3 title "MLA decode, one layer of DeepSeek-V2's attention (CPU)"
names = "'cache decompressed' 'cache compressed' 'absorbed, concatenated' \
'absorbed, scores added' 'projections materialised'"
set logscale xy
set grid
set key below maxcols 2
set xlabel "tokens per sequence"
set xtics (512, 1024, 2048, 4096, 8192)
set xrange [450:9500]
do for [b = 0:1] {
  batch = (b == 0) ? 1 : 32
  set ylabel "ms"
  set title sprintf("a whole step, batch %d", batch)
  plot for [i = 0:4] table index (5 * b + i) using 1:4 with linespoints lw 2 pt (4 + i) \
    title word(names, i + 1)
  set title sprintf("attention over the cache, batch %d", batch)
  plot for [i = 0:4] table index (5 * b + i) using 1:3 with linespoints lw 2 pt (4 + i) \
    title word(names, i + 1)
  set ylabel "MB"
  set title sprintf("cache, batch %d (dashed: + weights, workspace)", batch)
  plot for [i = 0:4] table index (5 * b + i) using 1:($5 / 1e6) with linespoints lw 2 pt (4 + i) \
      lc (i + 1) title word(names, i + 1), \
    for [i = 0:4] table index (5 * b + i) using 1:(($5 + $6 + $7) / 1e6) with lines lw 2 dt 2 \
      lc (i + 1) notitle
}
unset multiplot
