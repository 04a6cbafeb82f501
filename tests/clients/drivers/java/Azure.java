import com.azure.core.http.policy.HttpPipelinePolicy;
import com.azure.core.util.Context;
import com.azure.core.util.UrlBuilder;
import com.azure.messaging.servicebus.*;
import com.azure.messaging.servicebus.administration.*;
import com.azure.messaging.servicebus.administration.models.QueueProperties;
import com.azure.messaging.servicebus.models.*;
import com.fasterxml.jackson.databind.JsonNode;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.time.Instant;
import java.time.ZoneOffset;
import java.util.*;

/** Azure's client for Java: plain TCP by the emulator's connection string; TLS and WebSocket without its last part. */
final class Azure {
    private static final Duration WAIT = Duration.ofSeconds(20);

    private ServiceBusClientBuilder builder = connecting();
    private final Map<String, ServiceBusSenderClient> senders = new HashMap<>();
    private final Map<String, ServiceBusReceiverClient> receivers = new HashMap<>();
    private final List<Delivery> deliveries = new ArrayList<>();
    private Delivery exchanged;
    private ServiceBusTransactionContext transaction;

    private record Delivery(ServiceBusReceiverClient receiver, ServiceBusReceivedMessage message) {}

    private static ServiceBusClientBuilder connecting() {
        return new ServiceBusClientBuilder()
            .connectionString(Lines.connectionString()).transportType(Lines.transport());
    }

    private Object spanEntities(JsonNode given) {
        builder = connecting().enableCrossEntityTransactions();
        senders.clear();
        return null;
    }

    private ServiceBusSenderClient sender(String path) {
        return senders.computeIfAbsent(path, key -> builder.sender().queueName(path).buildClient());
    }

    private ServiceBusReceiverClient receiver(JsonNode given) {
        String key = given.get("path").asText() + " " + given.get("session");
        return receivers.computeIfAbsent(key, absent -> opened(given));
    }

    private ServiceBusReceiverClient opened(JsonNode given) {
        String[] path = given.get("path").asText().split("/");
        if (given.has("session")) {
            var sessions = builder.sessionReceiver().queueName(path[0]).buildClient();
            String session = Lines.text(given, "session");
            return session == null ? sessions.acceptNextSession() : sessions.acceptSession(session);
        }
        if (path.length == 3) {
            return builder.receiver().topicName(path[0]).subscriptionName(path[2]).buildClient();
        }
        SubQueue part = path.length == 2 ? SubQueue.DEAD_LETTER_QUEUE : SubQueue.NONE;
        return builder.receiver().queueName(path[0]).subQueue(part).buildClient();
    }

    private Object send(JsonNode given) {
        ServiceBusMessage message = new ServiceBusMessage(given.get("body").asText());
        message.setSessionId(Lines.text(given, "session"));
        if (given.hasNonNull("at")) {
            message.setScheduledEnqueueTime(Instant.ofEpochMilli(given.get("at").asLong()).atOffset(ZoneOffset.UTC));
        }
        sender(given.get("to").asText()).sendMessage(message);
        return null;
    }

    private Object receive(JsonNode given) {
        ServiceBusReceiverClient receiver = receiver(given);
        ServiceBusReceivedMessage message = receiver.receiveMessages(1, WAIT).iterator().next();
        deliveries.add(new Delivery(receiver, message));
        return Lines.received(deliveries.size() - 1, message);
    }

    private Delivery delivery(JsonNode given) {
        return deliveries.get(given.get("delivery").asInt());
    }

    private Object settle(JsonNode given) {
        Delivery got = delivery(given);
        switch (given.get("how").asText()) {
            case "accept" -> got.receiver.complete(got.message);
            case "modify" -> got.receiver.abandon(got.message);
            case "defer" -> got.receiver.defer(got.message);
            default -> got.receiver.deadLetter(got.message, new DeadLetterOptions().setDeadLetterReason("told"));
        }
        return null;
    }

    private Object settleThenClose(JsonNode given) {
        Delivery got = delivery(given);
        got.receiver.complete(got.message);
        got.receiver.close();
        return null;
    }

    private Object browse(JsonNode given) {
        var messages = receiver(given).peekMessages(given.get("count").asInt());
        return messages.stream().map(each -> each.getBody().toString()).toList();
    }

    private Object getState(JsonNode given) {
        byte[] state = delivery(given).receiver.getSessionState();
        return state == null ? null : new String(state, StandardCharsets.UTF_8);
    }

    private Object setState(JsonNode given) {
        String state = Lines.text(given, "state");
        delivery(given).receiver.setSessionState(state == null ? null : state.getBytes(StandardCharsets.UTF_8));
        return null;
    }

    private Object beginExchange(JsonNode given) {
        exchanged = delivery(given);
        transaction = exchanged.receiver.createTransaction();
        if ("reject".equals(Lines.text(given, "how"))) {
            var options = new DeadLetterOptions().setTransactionContext(transaction);
            exchanged.receiver.deadLetter(exchanged.message, options);
        } else {
            exchanged.receiver.complete(exchanged.message, new CompleteOptions().setTransactionContext(transaction));
        }
        if (given.has("to")) {
            ServiceBusMessage message = new ServiceBusMessage(given.get("body").asText());
            sender(given.get("to").asText()).sendMessage(message, transaction);
        }
        return null;
    }

    private Object endExchange(JsonNode given) {
        try {
            if (given.get("commits").asBoolean()) {
                exchanged.receiver.commitTransaction(transaction);
                return "committed";
            }
        } catch (ServiceBusException refused) {
            return "refused";
        }
        exchanged.receiver.rollbackTransaction(transaction);
        return "aborted";
    }

    /** Return the client for entities, which drops the port of its connection string. */
    private static ServiceBusAdministrationClient administration() {
        HttpPipelinePolicy port = (context, next) -> {
            String url = context.getHttpRequest().getUrl().toString();
            context.getHttpRequest().setUrl(UrlBuilder.parse(url).setPort(System.getenv("PORT")).toString());
            return next.process();
        };
        return new ServiceBusAdministrationClientBuilder()
            .connectionString(Lines.connectionString()).addPolicy(port).buildClient();
    }

    public static void main(String[] arguments) throws Exception {
        Lines.trust();
        Azure client = new Azure();
        ServiceBusAdministrationClient entities = administration();
        Lines.serve(Map.ofEntries(
            Map.entry("send", client::send),
            Map.entry("receive", client::receive),
            Map.entry("settle", client::settle),
            Map.entry("settle-then-close", client::settleThenClose),
            Map.entry("browse", client::browse),
            Map.entry("get-state", client::getState),
            Map.entry("set-state", client::setState),
            Map.entry("span-entities", client::spanEntities),
            Map.entry("begin-exchange", client::beginExchange),
            Map.entry("end-exchange", client::endExchange),
            Map.entry("create-queue", given -> entities.createQueue(given.get("name").asText()).getName()),
            Map.entry("list-queues", given -> entities.listQueues().stream().map(QueueProperties::getName).toList()),
            Map.entry("has-subscription", given ->
                entities.getSubscriptionExists(given.get("topic").asText(), given.get("name").asText())),
            Map.entry("delete-queue", given ->
                entities.deleteQueueWithResponse(given.get("name").asText(), Context.NONE).getStatusCode())));
    }
}
