# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
#
# The state that a board is in, for the doctor. Goes after ask.sh, which see. Writes nothing there.
# shellcheck disable=SC2154 # $proc, $root and $top are set in front of this text

tell now "$(date -u +%s)"
tell root "$(cd -- "$root/" && pwd -P)"
while read -r _ point type options _; do
    tell mount "$point $type $options"
done <"$proc/mounts"

tell overcommit "$(cat "$proc/sys/vm/overcommit_memory")"
tell available_kib "$(kib MemAvailable)"
tell huge_pages "$(sed -n 's/^HugePages_Total: *//p' "$proc/meminfo")"
tell huge_page_kib "$(kib Hugepagesize)"
tell memlock "$(sed -n 's/^Max locked memory *\([a-z0-9]*\) .*/\1/p' "$proc/self/limits")"

cpus=$top/sys/devices/system/cpu
tell present "$(cat "$cpus/present")"
tell online "$(cat "$cpus/online")"
for cpu in "$cpus"/cpu[0-9]*/cpufreq; do
    tell governor "$(cat "$cpu/scaling_driver" "$cpu/scaling_governor" | tr '\n' ' ')"
    tell clock_khz "$(cat "$cpu/scaling_max_freq" "$cpu/cpuinfo_max_freq" | tr '\n' ' ')"
done

# A temperature in thousandths of a degree, and the one at which the kernel slows the CPUs down.
for zone in "$top"/sys/class/thermal/thermal_zone*; do
    [ -r "$zone/temp" ] || continue
    for trip in "$zone"/trip_point_*_type; do
        case $(cat "$trip") in
        passive) cat "${trip%type}temp" ;;
        esac
    done | sort -n | {
        read -r passive
        tell zone "$(cat "$zone/temp") ${passive:--} $(cat "$zone/type")"
    }
done
for device in "$top"/sys/class/thermal/cooling_device*; do
    case $(cat "$device/type") in
    cpufreq-* | *-cpufreq-* | Processor) tell slowed "$(cat "$device/cur_state")" ;;
    esac
done
for sensor in "$top"/sys/class/hwmon/hwmon*; do
    [ "$(cat "$sensor/name")" != rpi_volt ] || tell low_voltage "$(cat "$sensor/in0_lcrit_alarm")"
done
