#!/bin/bash
# The image's entry: `deduper` with the given words, or what Spark on Kubernetes asks of the image of its pods:
#
#     executor           an executor of a job whose driver is elsewhere; the driver sets the SPARK_… variables
#     driver WORDS       `spark-submit` of the Spark operator, in client mode inside this pod
set -euo pipefail

case "${1-}" in
executor)
    options=()
    while IFS= read -r name; do
        options+=("${!name}")
    done < <(compgen -e | grep '^SPARK_JAVA_OPT_' | sort -t_ -k4 -n || true)
    path="${HADOOP_CONF_DIR:+$HADOOP_CONF_DIR:}${SPARK_CONF_DIR:+$SPARK_CONF_DIR:}$SPARK_HOME/jars/*"
    path="$path${SPARK_EXTRA_CLASSPATH:+:$SPARK_EXTRA_CLASSPATH}"
    exec java ${options[@]+"${options[@]}"} "-Xms$SPARK_EXECUTOR_MEMORY" "-Xmx$SPARK_EXECUTOR_MEMORY" -cp "$path" \
        org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend \
        --driver-url "$SPARK_DRIVER_URL" --executor-id "$SPARK_EXECUTOR_ID" --cores "$SPARK_EXECUTOR_CORES" \
        --app-id "$SPARK_APPLICATION_ID" --hostname "$SPARK_EXECUTOR_POD_IP" \
        --resourceProfileId "$SPARK_RESOURCE_PROFILE_ID" --podName "$SPARK_EXECUTOR_POD_NAME"
    ;;
driver)
    shift
    exec "$SPARK_HOME/bin/spark-submit" --conf "spark.driver.bindAddress=$SPARK_DRIVER_BIND_ADDRESS" \
        --deploy-mode client "$@"
    ;;
*)
    exec deduper "$@"
    ;;
esac
